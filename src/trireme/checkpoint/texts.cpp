#include "trireme/checkpoint/texts.h"

#include <cstdint>

namespace trireme::checkpoint {

std::vector<std::string> all_texts(const std::string& mine, comm::Group& group) {
  if (group.size() == 1) return {mine};
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size()));
  const auto size = static_cast<std::int64_t>(mine.size());
  group
      .all_gather(comm::ConstBuffer{&size, 1, comm::DType::kI64},
                  comm::Buffer{sizes.data(), sizes.size(), comm::DType::kI64})
      .wait();
  const std::vector<std::size_t> counts(sizes.begin(), sizes.end());
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  std::string all(total, '\0');
  group
      .all_gather_v(comm::ConstBuffer{mine.data(), mine.size(), comm::DType::kU8},
                    comm::Buffer{all.data(), all.size(), comm::DType::kU8}, counts)
      .wait();
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::size_t count : counts) {
    texts.push_back(all.substr(at, count));
    at += count;
  }
  return texts;
}

}  // namespace trireme::checkpoint
