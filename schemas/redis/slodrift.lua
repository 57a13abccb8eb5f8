#!lua name=slodrift

-- Function library of slodrift, for Redis 7 and later and for Valkey. An administrator loads it once (`slodrift migrate`);
-- the judge then needs FCALL and the commands below on its own keys, and never EVAL.
--
-- slodrift_assert makes a pool's state the current one, all of it or nothing:
--   KEYS  head, snap, log, then one subject hash per snapshot entry in its order, then hashes to remove
--   ARGV  head, snapshot, doorbell channel, then pairs (stream id, decision) that are new to the log
--   reply OK | SAME | STALE <stored> | CONFLICT <stored> | OVER_CAP <wanted> <cap> | BAD <why>
-- slodrift_version answers the number that schemas/contract.py calls LIBRARY_VERSION.

local VERSION = 1
local HEAD_TTL_MS = 60000 -- a head that is gone means "unknown"; hosts then go by staleness
local SNAP_TTL_MS = 3600000
local GRACE_MS = 60000 -- people may still look a subject up this long after its end
local LOG_MAXLEN = '10000'
local MAX_HEAD, MAX_SNAP = 2048, 1048576

local function read(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) == 'table' and reply.err then return false end -- a key of a wrong type counts as missing
  return reply
end

local function decode(raw)
  if not raw then return nil end
  local ok, value = pcall(cjson.decode, raw)
  if ok and type(value) == 'table' then return value end
  return nil
end

local function all_of(kind, ...)
  for i = 1, select('#', ...) do
    if type((select(i, ...))) ~= kind then return false end
  end
  return true
end

local function version_of(head)
  if not all_of('number', head.gen, head.epoch, head.seq, head.hb) then return nil end
  return { head.gen, head.epoch, head.seq, head.hb }
end

local function compare(a, b, n)
  for i = 1, n do
    if a[i] < b[i] then return -1 end
    if a[i] > b[i] then return 1 end
  end
  return 0
end

local function whole(x) return string.format('%.0f', x) end

local function show(v)
  local words = {}
  for i, x in ipairs(v) do words[i] = whole(x) end
  return table.concat(words, '-')
end

-- Nodes that automation took away; an operator's and the flap latch's have a cap of their own on the hosts.
local function is_capped(entry)
  return entry.scope == 'node' and not entry.latched and (entry.state == 'OPEN' or entry.state == 'HALF_OPEN')
end

-- Last record of the log: id, epoch and seq, and the generation that wrote it.
local function log_end(log)
  local last = read('XREVRANGE', log, '+', '-', 'COUNT', 1)
  if not last or not last[1] then return nil end
  local id, fields, gen = last[1][1], last[1][2], 0
  for i = 1, #fields, 2 do
    if fields[i] == 'gen' then gen = tonumber(fields[i + 1]) or 0 end
  end
  local epoch, seq = string.match(id, '^(%d+)-(%d+)$')
  return { gen, tonumber(epoch), tonumber(seq) }, id
end

-- More than the cap is refused only if this state adds somebody: a cap that shrank must not delay a close. Without a stored
-- snapshot (all was lost) nobody can tell who is new; refusing would keep closes from the hosts, and these check for themselves.
local function over_cap(entries, stored, cap)
  local wanted, before, adds = 0, {}, false
  if not stored then return false, 0 end
  for _, entry in ipairs(type(stored.entries) == 'table' and stored.entries or {}) do
    if is_capped(entry) then before[entry.subject] = true end
  end
  for _, entry in ipairs(entries) do
    if is_capped(entry) then
      wanted = wanted + 1
      adds = adds or not before[entry.subject]
    end
  end
  return adds and wanted > cap, wanted
end

-- Writes are not undone when a function fails half-way: so everything a write needs is checked before the first one.
local function is_entry(e)
  return type(e) == 'table' and all_of('string', e.subject, e.scope, e.state, e.action, e.tx, e.reason, e.policy_version)
    and type(e.version) == 'table' and #e.version == 3 and all_of('number', e.opened_ms, unpack(e.version))
end

local function write_subject(key, entry, head)
  local ttl = SNAP_TTL_MS
  if type(entry.not_after_ms) == 'number' then ttl = entry.not_after_ms - head.issued_ms + GRACE_MS end
  redis.call('DEL', key)
  if ttl <= 0 then return end
  redis.call('HSET', key, 'subject', entry.subject, 'scope', entry.scope, 'state', entry.state, 'mode', head.mode,
    'action', entry.action, 'version', show(entry.version), 'tx', entry.tx, 'reason', entry.reason,
    'policy_version', entry.policy_version, 'opened_ms', whole(entry.opened_ms),
    'not_after_ms', type(entry.not_after_ms) == 'number' and whole(entry.not_after_ms) or '',
    'latched', entry.latched and '1' or '0')
  redis.call('PEXPIRE', key, whole(math.min(ttl, SNAP_TTL_MS)))
end

-- The log is for people and for readers that want every step; its failure must not keep a state from the hosts.
local function append(log, args, version)
  local ended, last = log_end(log)
  if ended and ended[1] < version[1] then -- an operator raised the generation: ids start again
    redis.pcall('DEL', log)
    last = nil
  end
  local function add(id, ...)
    local reply = redis.pcall('XADD', log, 'MAXLEN', '~', LOG_MAXLEN, id, 'gen', whole(version[1]), 'prev', last or '', ...)
    if type(reply) == 'string' then last = reply end -- an id that is not greater is there already
  end
  for i = 4, #args, 2 do add(args[i], 'decision', args[i + 1]) end
  local id = whole(version[2]) .. '-' .. whole(version[3])
  if last ~= id and id ~= '0-0' then add(id, 'decision', '') end
end

local function assert_state(keys, args)
  local raw_head, raw_snap = args[1], args[2]
  if #raw_head > MAX_HEAD or #raw_snap > MAX_SNAP then return { 'BAD', 'too long' } end
  local head = decode(raw_head)
  local new = head and version_of(head)
  if not new or type(head.mode) ~= 'string' or not all_of('number', head.issued_ms, head.cap, head.n_nonclosed) then
    return { 'BAD', 'head' }
  end

  local stored_raw = read('GET', keys[1])
  local stored_head = decode(stored_raw)
  local old = stored_head and version_of(stored_head)
  if old then
    local order = compare(new, old, 4)
    if order < 0 then return { 'STALE', show(old) } end
    if order == 0 and stored_raw == raw_head then return { 'SAME' } end -- a retry whose first answer was lost
    if order == 0 or (compare(new, old, 3) == 0 and head.snap_sha256 ~= stored_head.snap_sha256) then
      return { 'CONFLICT', show(old) } -- one version, two states
    end
  end
  local ended = log_end(keys[3])
  if ended and compare(new, ended, 3) < 0 then return { 'STALE', show(ended) } end -- the head expired, the fence did not

  local stored_snap = read('GET', keys[2])
  if stored_snap ~= raw_snap then
    local snap = decode(raw_snap)
    if not snap or type(snap.entries) ~= 'table' or #snap.entries ~= head.n_nonclosed then return { 'BAD', 'snapshot' } end
    if #keys < 3 + #snap.entries then return { 'BAD', 'a subject has no key' } end
    for _, entry in ipairs(snap.entries) do
      if not is_entry(entry) then return { 'BAD', 'entry' } end
    end
    local refuse, wanted = over_cap(snap.entries, decode(stored_snap), head.cap)
    if refuse then return { 'OVER_CAP', whole(wanted), whole(head.cap) } end
    redis.call('SET', keys[2], raw_snap, 'PX', SNAP_TTL_MS)
    for i, entry in ipairs(snap.entries) do write_subject(keys[3 + i], entry, head) end
    for i = 4 + #snap.entries, #keys do redis.call('DEL', keys[i]) end
  else
    redis.call('PEXPIRE', keys[2], SNAP_TTL_MS)
  end
  redis.call('SET', keys[1], raw_head, 'PX', HEAD_TTL_MS)
  if not old or compare(new, old, 3) ~= 0 then
    append(keys[3], args, new)
    redis.call('PUBLISH', args[3], show(new))
  end
  return { 'OK' }
end

redis.register_function('slodrift_assert', assert_state)
redis.register_function({
  function_name = 'slodrift_version',
  callback = function() return VERSION end,
  flags = { 'no-writes' },
})
