// formats/token_lists.h -- token ids in a JSON file: a list of lists, one a sequence.
//
// Depends on: base, formats/json_reader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme::formats {

using TokenLists = std::vector<std::vector<std::int64_t>>;

/// FormatError naming the file and byte for anything else; a ConfigError when it is empty or, where `equal` is asked,
/// lists differ in length.
TokenLists read_token_lists(const std::filesystem::path& path, bool equal);

}  // namespace trireme::formats
