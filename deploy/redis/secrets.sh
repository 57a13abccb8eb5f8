#!/bin/sh
# secrets.sh DIR [FLEET]: passwords of the Redis users, drawn once, and what follows from them, for docker-compose.yml:
#   DIR/slodrift-judge, -host, -setup   passwords
#   DIR/users.acl                       users with their rights (users.acl beside this script) and the SHA-256 of each password
#   DIR/judge-url, setup-url            addresses with a password, as slodrift reads them from SLODRIFT_SECRETS_DIR
# Nobody else may enter DIR. The files in it can be read by whoever gets them mounted: containers run as users of their own.
set -eu
umask 077
dir=$1
fleet=${2:-default}
case $fleet in *[!A-Za-z0-9._-]*) echo "secrets.sh: the fleet has letters, digits, dots, _ and - only" >&2; exit 2 ;; esac
rules=$(dirname "$0")/users.acl
mkdir -p "$dir"
chmod 700 "$dir"
edit="s/{slodrift:default:/{slodrift:$fleet:/g"
for role in judge host setup; do
    file=$dir/slodrift-$role
    [ -s "$file" ] || od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$file"
    hash=$(tr -d '\n' <"$file" | sha256sum | cut -d ' ' -f 1)
    edit="$edit;s/^user slodrift-$role off resetpass/user slodrift-$role on resetpass #$hash/"
done
sed "$edit" "$rules" >"$dir/users.acl"
for role in judge setup; do
    printf 'redis://slodrift-%s:%s@redis:6379/0' "$role" "$(cat "$dir/slodrift-$role")" >"$dir/$role-url"
done
chmod 644 "$dir"/*
