// tests/experiment/trainer.h -- a stand-in for `trireme supervise -- trireme train`: a script that counts steps.
#pragma once

#include <filesystem>
#include <string>

#include "tests/files.h"

namespace trireme::experiment {

/// Its loss after a step is the distance of log10(learning rate) from -2.5, and 1 / step. It keeps the promises of a
/// run that a sweep relies on: it goes on where it was, evaluates at its last step, holds its lock, and saves and ends
/// with 130 when RUN/stop is there. `script` runs first and sees $out, $steps, $lr and $at.
inline std::filesystem::path write_trainer(const std::filesystem::path& folder, const std::string& step_seconds,
                                           const std::string& script = "") {
  const std::filesystem::path path = folder / "trainer";
  write_all(path, R"(#!/bin/bash
while [ "$1" != -- ]; do shift; done
shift 3
while [ $# -gt 0 ]; do
  case "$1 $2" in
    "--set train.steps="*) steps=${2#*=} ;;
    "--set optim.learning_rate="*) lr=${2#*=} ;;
    "--out "*) out=$2 ;;
  esac
  shift
done
mkdir -p $out
exec 9>$out/lock
flock 9
rm -f $out/stop
at=$(cat $out/metrics.jsonl 2>/dev/null | wc -l)  # a line is written whole: that is what it saves
)" + script + R"(
echo '{"event":"start","time":1,"step":'$at'}' >>$out/events.jsonl
while [ $at -lt $steps ]; do
  at=$((at + 1))
  echo '{"step":'$at',"loss":1,"grad_norm":1,"lr":1,"tokens":1,"tokens_per_s":1,"mfu":null,"memory":1,"seconds":1,' \
    '"breakdown":{"compute":1,"data":0,"comm":0,"overhead":0}}' >>$out/metrics.jsonl
  echo '{"beats":'$at',"step":'$at',"saved":'$at',"pid":'$$'}' >$out/heartbeat.json
  [ -e $out/stop ] && rm -f $out/stop && exit 130
  [ )" + step_seconds +
                      " = 0 ] || sleep " + step_seconds + R"( 9>&-
done
loss=$(awk "BEGIN { d = log($lr) / log(10) + 2.5; print (d < 0 ? -d : d) + 1 / $steps }")
echo '{"event":"eval","time":1,"step":'$steps',"loss":'$loss'}' >>$out/events.jsonl
echo '{"event":"checkpoint","time":1,"step":'$steps',"path":"'$out'/checkpoints/step-'$steps'","bytes":10}' >>$out/events.jsonl
)");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

}  // namespace trireme::experiment
