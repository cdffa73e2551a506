// tokenizer.json: any text is read or refused; what is read encodes, decodes, and is written and read again as the
// same.
#include "tests/fuzz/fuzz.h"
#include "trireme/base/error.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/data/tokenizer/utf8_text.h"
#include "trireme/formats/format_error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme::data;
  const std::string text(reinterpret_cast<const char*>(data), size);
  TokenizerDescription description;
  try {
    description = parse_tokenizer_json(text, "t");
  } catch (const trireme::formats::FormatError& error) {
    fuzz::require(error.message().starts_with("t: "), "an error names its file");
    fuzz::require(error.message().find("(byte ") != std::string::npos, "an error names its byte");
    return 0;
  }
  const std::string written = tokenizer_json(description);
  fuzz::require(tokenizer_json(parse_tokenizer_json(written, "again")) == written, "what is written is read back");
  try {
    const Tokenizer tokenizer(std::move(description), "t");
    const auto ids = tokenizer.encode("The <s> caf\u00e9 isn't e\u0301 12345\n\n  \U0001F600\u2581<unk>!");
    for (const std::int32_t id : ids)
      fuzz::require(id >= 0 && id < tokenizer.vocab_size(), "tokens are in the vocabulary");
    fuzz::require(first_invalid_utf8(tokenizer.decode(ids)) == std::string::npos, "decoding gives UTF-8");
    StreamDecoder stream(tokenizer);
    for (const std::int32_t id : ids) stream.push(id);
    stream.finish();
  } catch (const trireme::ConfigError&) {  // parts that do not go together; a token of a template that is not there
  }
  return 0;
}
