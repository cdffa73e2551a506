// model.safetensors.index.json: any text is read or refused; what is read can be made and read again.
#include <algorithm>

#include "tests/fuzz/fuzz.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/hf_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme::formats;
  const std::string text(reinterpret_cast<const char*>(data), size);
  HfIndex index;
  try {
    index = parse_hf_index(text, "i");
  } catch (const FormatError& error) {
    fuzz::require(error.message().find("(byte ") != std::string::npos, "an error names its byte");
    return 0;
  }
  fuzz::require(index.text == text, "the bytes are kept");
  for (const auto& [tensor, file] : index.weight_map) {
    fuzz::require(!file.empty() && file.find('/') == file.npos && file != "..", "files stay in the folder");
    if (const auto number = parse_hf_shard_name(file); number && file.size() == 32)
      fuzz::require(number->shards == 1 || hf_shard_name(number->shard, number->shards) == file,
                    "shard names read back");
  }
  const HfIndex made = make_hf_index({.total_size = 1, .others = index.metadata}, index.weight_map);
  const HfIndex read = parse_hf_index(made.text, "again");
  std::ranges::sort(index.weight_map);
  fuzz::require(read.weight_map == index.weight_map && read.total_size == 1, "what is made is read back");
  return 0;
}
