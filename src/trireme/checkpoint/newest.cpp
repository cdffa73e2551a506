#include "trireme/checkpoint/newest.h"

#include "trireme/base/error.h"
#include "trireme/checkpoint/texts.h"

namespace trireme::checkpoint {

std::int64_t newest_whole(const std::filesystem::path& folder, comm::Group& group,
                          std::vector<formats::DamagedCheckpoint>& damaged, std::int64_t at_most) {
  // Rank 0 says which there are: another rank might see a folder that is just being removed.
  std::string listed;
  if (group.rank() == 0) {
    for (const std::int64_t step : formats::list_checkpoints(folder)) listed += formats::checkpoint_name(step) + "\n";
  }
  listed = all_texts(listed, group)[0];
  while (!listed.empty()) {
    listed.pop_back();
    const std::size_t begin = listed.rfind('\n') == std::string::npos ? 0 : listed.rfind('\n') + 1;
    const std::filesystem::path path = folder / listed.substr(begin);
    listed.resize(begin);
    const std::int64_t step = formats::checkpoint_step(path.filename().string()).value();
    if (at_most >= 0 && step > at_most) continue;
    std::string problem;
    try {
      formats::CheckpointFolder(path).verify({.index = group.rank(), .count = group.size()});
    } catch (const IoError& error) {
      problem = error.message();
    }
    std::string first;
    for (const std::string& theirs : all_texts(problem, group)) {
      if (first.empty()) first = theirs;
    }
    if (first.empty()) return step;
    if (group.rank() == 0) damaged.push_back({path, first});
  }
  return -1;
}

}  // namespace trireme::checkpoint
