# Mailboxes between processes over UCX: connections break all the time, one process is killed, and the others have all mail of
# each other once and in order.
source "$(dirname "$0")/ranks.sh" "$@"
output=$(ranks 4 "$process_ranks" mail auto 1 2>/dev/null)
for rank in 0 1 2; do
  grep -qE "^rank $rank has all of the living and [0-9]+ of the dead one$" <<<"$output" || { echo "rank $rank:"; echo "$output"; exit 1; }
done
echo "$output"
echo fine
