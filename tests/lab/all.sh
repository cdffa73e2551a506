# all.sh PROGRAM REPOSITORY: what `make test-lab` runs, long: launchers on hosts in namespaces, an elastic run of 100 kills, parameter
# servers of 50. What is not there is skipped with a sentence, a test that fails keeps no other from being run, and the last lines say
# what came of each. LAB_FOLDER is where Slurm is installed; TORCHRUN and RAY_PYTHON name what is not in PATH.
set -u
program=$1 repository=$2 here=$(dirname "$(realpath "$0")")/..
failed=0 summary=
test_of() { # NAME ARGUMENTS...
  local name=$1 began=$SECONDS status=0 verdict
  shift
  printf '\n==== %s\n' "$name"
  bash "$here/$name.sh" "$@" || status=$?
  case $status in
    0) verdict=passed ;;
    77) verdict=skipped ;;
    *) verdict="FAILED ($status)" failed=$((failed + 1)) ;;
  esac
  summary+=$(printf '%-22s %-12s %5d s' "$name" "$verdict" $((SECONDS - began)))$'\n'
}
export LAB_INSTALL=yes
for name in launch sweep torchrun ray networks jobset pods; do test_of lab/$name "$program" "$repository"; done
test_of elastic/half_open "$program"
test_of elastic/namespaces "$program" 100
test_of servers/drill "$program" 50
test_of servers/hosts "$program" 50
test_of servers/spot "$program" 20
printf '\n%s' "$summary"
[ $failed = 0 ] || { echo "$failed failed"; exit 1; }
