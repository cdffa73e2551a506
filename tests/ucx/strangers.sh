# Who may join: ranks with the token; without one, processes of the same user. Everybody else is refused, with a line in the
# log, and the ranks go on. Ranks with another recipe are named.
source "$(dirname "$0")/ranks.sh" "$@"
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
said() { grep -Eq "$2" "$folder/$1" || { echo "$1 said nothing like '$2':"; cat "$folder"/*; exit 1; }; }

echo "== noise at the door, and a rank with another token"
port=$(free_port)
(umask 077; head -c 32 /dev/urandom | base64 >"$folder/token"; echo "quite another secret" >"$folder/wrong")
TRIREME_TOKEN_FILE=$folder/token as_rank 0 2 "$port" "$process_ranks" crossed auto 1 >"$folder/zero" 2>&1 &
zero=$!
for _ in $(seq 200); do (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; sleep 0.05; done
printf 'GET / HTTP/1.1\r\n\r\n' >"/dev/tcp/127.0.0.1/$port"
if TRIREME_TOKEN_FILE=$folder/wrong as_rank 1 2 "$port" "$process_ranks" crossed auto 1 >"$folder/wrong_token" 2>&1; then exit 1; fi
if as_rank 1 2 "$port" "$process_ranks" crossed auto 1 >"$folder/no_token" 2>&1; then exit 1; fi
TRIREME_TOKEN_FILE=$folder/token as_rank 1 2 "$port" "$process_ranks" crossed auto 1 >"$folder/one" 2>&1
wait $zero
said wrong_token "does not know this process's token"
said no_token "rank 0 has a token and this process has none"
said zero "refused 127.0.0.1:[0-9]+: rank 0 has a token and this process has none"
said zero "dropped the connection from 127.0.0.1:[0-9]+"
said zero "fine on ucx"

echo "== a token that others may read"
chmod 644 "$folder/token"
if TRIREME_TOKEN_FILE=$folder/token as_rank 0 2 "$(free_port)" "$process_ranks" crossed >"$folder/open" 2>&1; then exit 1; fi
said open "is open to others: mode 0644"

if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
  echo "== another user without a token"
  port=$(free_port)
  as_rank 0 2 "$port" "$process_ranks" crossed auto 1 >"$folder/owner" 2>&1 &
  owner=$!
  for _ in $(seq 200); do (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; sleep 0.05; done
  if as_rank 1 2 "$port" setpriv --reuid 65534 --clear-groups "$process_ranks" crossed auto 1 >"$folder/other_user" 2>&1; then exit 1; fi
  as_rank 1 2 "$port" "$process_ranks" crossed auto 1 >"$folder/same_user" 2>&1
  wait $owner
  said other_user "only processes of its user on its machine may join"
  said owner "fine on ucx"
fi

echo "== ranks on several hosts need a token"
if RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port) timeout 20 \
  "$process_ranks" crossed >"$folder/hosts" 2>&1; then exit 1; fi
said hosts "are on several hosts .* there is no token"

echo "== another recipe"
port=$(free_port)
as_rank 0 2 "$port" "$process_ranks" crossed auto 1 aaaa >"$folder/recipe_0" 2>&1 &
first=$!
if as_rank 1 2 "$port" "$process_ranks" crossed auto 1 bbbb >"$folder/recipe_1" 2>&1; then exit 1; fi
began=$SECONDS
wait $first && exit 1
said recipe_1 "rank 1 on .* has another recipe \(fingerprint bbbb\) than rank 0 on .* \(aaaa\)"
said recipe_0 "rank 1 failed: rank 1 on .* has another recipe"
((SECONDS - began < 20)) || { echo "rank 0 waited $((SECONDS - began)) s for a rank that was refused"; exit 1; }
echo fine
