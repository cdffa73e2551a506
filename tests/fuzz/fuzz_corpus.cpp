// Files of text: any bytes are a page of HTML; any are unpacked or refused, within bounds; any are a Parquet file or
// refused; any are conversations or refused.
#include "tests/fuzz/fuzz.h"
#include "trireme/data/corpus/chat.h"
#include "trireme/data/corpus/decompress.h"
#include "trireme/data/corpus/html_text.h"
#include "trireme/data/corpus/parquet.h"
#include "trireme/data/tokenizer/utf8_text.h"
#include "trireme/formats/format_error.h"

namespace {

using namespace trireme::data;

template <typename Read>
void read_or_refuse(Read&& read) {
  try {
    read();
  } catch (const trireme::formats::FormatError& error) {
    fuzz::require(error.message().starts_with("t: "), "an error names its file");
    fuzz::require(error.message().find("(byte ") != std::string::npos, "an error names its byte");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string page = html_text(text);
  fuzz::require(page.size() <= size, "the text of a page is no longer than the page");
  if (first_invalid_utf8(text) == std::string_view::npos)
    fuzz::require(first_invalid_utf8(page) == std::string::npos, "the text of a page is UTF-8");

  for (const Compression compression : {Compression::kGzip, Compression::kZstd}) {
    read_or_refuse([&] {
      Decompressor stream(compression, text, "t");
      std::uint64_t made = 0;
      for (std::string piece; stream.read(piece); piece.clear()) {
        made += piece.size();
        fuzz::require(made <= Decompressor::kAlwaysAllowed + Decompressor::kMostRatio * (size + 1) + (1 << 20),
                      "what a file unpacks to is bounded");
      }
    });
  }
  read_or_refuse([&] {
    std::uint64_t made = 0;
    ParquetColumn(text, "t", "text").read([&](std::string_view document) {
      made += document.size();
      fuzz::require(made <= Decompressor::kAlwaysAllowed + Decompressor::kMostRatio * (size + 1), "texts are bounded");
      fuzz::require(first_invalid_utf8(document) == std::string_view::npos, "a text of a column is UTF-8");
    });
  });
  read_or_refuse([&] {
    trireme::formats::JsonReader json(text, "t");
    for (const ChatMessage& message : read_conversation(json))
      fuzz::require(first_invalid_utf8(message.content) == std::string::npos, "a message is UTF-8");
    json.end();
  });
  return 0;
}
