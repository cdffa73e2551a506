// config.json: any text is read or refused; what is read is written and read again as the same.
#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/hf_config.h"
#include "trireme/formats/json_text.h"

namespace {

template <typename T>
void look(const trireme::formats::HfConfig& config, const std::string& key) {
  try {
    config.get<T>(key);
  } catch (const trireme::formats::FormatError& error) {
    fuzz::require(error.message().starts_with("c: "), "an error names its file");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme::formats;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    HfConfig config(text, "c");
    fuzz::require(config.text() == text, "the bytes are kept");
    for (const auto& [key, value] : config.json().items()) {
      look<std::int64_t>(config, key);
      look<double>(config, key + ".factor");
      look<std::vector<std::int64_t>>(config, key);
      look<std::vector<std::string>>(config, key);
    }
    const std::string written = python_json(config.json(), Keys::kAsTheyAre);
    fuzz::require(python_json(parse_json(written, "again"), Keys::kAsTheyAre) == written,
                  "what is written is read back");
    config.set("fuzzed", 1);
    fuzz::require(HfConfig(config.text(), "again").get<std::int64_t>("fuzzed") == 1, "what was set is there");
  } catch (const FormatError& error) {
    fuzz::require(error.message().find("(byte ") != std::string::npos, "an error names its byte");
  }
  return 0;
}
