#include "trireme/formats/token_lists.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/formats/json_reader.h"

namespace trireme::formats {
namespace {

constexpr std::uint64_t kMaxBytes = 1'000'000'000;

}  // namespace

TokenLists read_token_lists(const std::filesystem::path& path, bool equal) {
  const std::string text = read_text_file(path, kMaxBytes), source = path.string();
  JsonReader json(text, source);
  TokenLists lists;
  json.array([&] {
    auto& list = lists.emplace_back();
    json.array([&] { list.push_back(json.whole_number()); });
  });
  json.end();
  if (lists.empty() || lists.front().empty()) {
    throw ConfigError(fmt::format("{} holds no tokens", source),
                      "write a list of lists, such as [[1, 2, 3], [4, 5, 6]]");
  }
  for (std::size_t i = 0; equal && i < lists.size(); ++i) {
    if (lists[i].size() == lists[0].size()) continue;
    throw ConfigError(
        fmt::format("{}: list {} has {} tokens, but list 0 has {}", source, i, lists[i].size(), lists[0].size()),
        "make them equally long");
  }
  return lists;
}

}  // namespace trireme::formats
