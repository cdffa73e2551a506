#include "trireme/launch/job.h"

#include <fmt/format.h>

#include "trireme/launch/quote.h"

namespace trireme::launch {

std::string token_file(const Job& job) {
  for (const auto& [name, value] : job.environment) {
    if (name == kTokenFile) return value;
  }
  return {};
}

std::vector<std::string> train_words(const Job& job) {
  std::vector<std::string> words = {job.program, "train", job.recipe};
  for (const std::string& set : job.sets) {
    words.emplace_back("--set");
    words.push_back(set);
  }
  if (job.sweep.empty()) {  // else each point has its own
    words.emplace_back("--out");
    words.push_back(job.out.string());
  }
  if (job.resume) words.emplace_back("--resume");
  return words;
}

std::vector<Variable> torchrun_environment(const Job& job, const std::string& master, int rank, int local_rank,
                                           int local_ranks, int node) {
  return {{"RANK", std::to_string(rank)},
          {"LOCAL_RANK", std::to_string(local_rank)},
          {"WORLD_SIZE", std::to_string(job.ranks)},
          {"LOCAL_WORLD_SIZE", std::to_string(local_ranks)},
          {"GROUP_RANK", std::to_string(node)},
          {"GROUP_WORLD_SIZE", std::to_string(job.nodes)},
          {"MASTER_ADDR", master},
          {"MASTER_PORT", std::to_string(job.port)}};
}

std::string guarded_script(const std::filesystem::path& folder, const std::vector<std::string>& words,
                           const std::vector<Variable>& environment) {
  std::vector<std::string> line = {"env"};
  for (const auto& [name, value] : environment) line.push_back(fmt::format("{}={}", name, value));
  line.insert(line.end(), words.begin(), words.end());
  // Background commands of sh read /dev/null, so the input is kept as descriptor 3. The watcher writes nowhere: it
  // would hold ssh's streams open after the command's end.
  return fmt::format(
      "cd {} || exit 2; exec 3<&0; {} 3<&- & p=$!; "
      "(while read -r s <&3; do kill -s \"$s\" $p; done; kill -s TERM $p; sleep 10; kill -s KILL $p) >/dev/null 2>&1 & "
      "w=$!; wait $p; s=$?; kill $w 2>/dev/null; exit $s",
      sh_word(folder.string()), sh_line(line));
}

std::string rank_script(const Job& job, const std::vector<Variable>& environment) {
  std::vector<Variable> all = job.environment;
  all.insert(all.end(), environment.begin(), environment.end());
  return guarded_script(job.folder, train_words(job), all);
}

}  // namespace trireme::launch
