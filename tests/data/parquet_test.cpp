#include "trireme/data/corpus/parquet.h"

#include <gmock/gmock.h>

#include "tests/data/tokenizer_samples.h"
#include "trireme/data/corpus/corpus.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string fixture(const std::string& name) {
  return read_all(std::filesystem::path(TRIREME_FIXTURES) / "corpus" / (name + ".parquet"));
}

std::vector<std::string> texts_in(const std::string& bytes, const std::string& column = "text") {
  std::vector<std::string> texts;
  ParquetColumn(bytes, "t.parquet", column).read([&](std::string_view text) { texts.emplace_back(text); });
  return texts;
}

/// As scripts/make-fixtures/parquet has them; `null`: what stands for a null.
std::vector<std::string> words(const std::optional<std::string>& null, const std::string& empty = "") {
  std::vector<std::string> all;
  for (int i = 0; i < 9; ++i) {
    for (const char* word : {"Three banks of oars", "", "pull one hull;"}) all.emplace_back(*word == 0 ? empty : word);
    if (null) all.push_back(*null);
    for (const char* word : {"été €", "pull one hull;", "as data, tensor and pipeline"}) all.emplace_back(word);
  }
  return all;
}

// Both versions of pages, with and without dictionaries and nulls, one row group and several.
TEST(Parquet, GivesTheTextsOfAColumn) {
  EXPECT_EQ(texts_in(fixture("plain")), words("x", "x"));
  EXPECT_EQ(texts_in(fixture("snappy")), words(std::nullopt));
  EXPECT_EQ(texts_in(fixture("zstd")), words(std::nullopt));
  EXPECT_EQ(texts_in(fixture("gzip")), words(std::nullopt));
}

TEST(Parquet, SaysWhatItDoesNotRead) {
  EXPECT_THAT(
      words_of([] { texts_in(fixture("plain"), "body"); }),
      AllOf(HasSubstr("t.parquet: has no column \"body\" of texts; there are text (byte "), HasSubstr("--field")));
  EXPECT_THAT(words_of([] { texts_in(fixture("plain"), "id"); }), HasSubstr("has no column \"id\" of texts"));
  EXPECT_THAT(words_of([] { texts_in(fixture("snappy"), "tags"); }), HasSubstr("has no column \"tags\" of texts"));
  EXPECT_THAT(words_of([] { texts_in(fixture("lz4")); }), HasSubstr("is compressed with LZ4"));
  EXPECT_THAT(words_of([] { texts_in("PAR1 and no more"); }), HasSubstr("is no Parquet file, or cut short (byte 0)"));
}

TEST(Parquet, DamageIsAnErrorOrAnotherTextNeverMore) {
  for (const std::string name : {"plain", "snappy", "zstd", "gzip"}) {
    const std::string whole = fixture(name);
    for (std::size_t cut = 0; cut < whole.size(); cut += 37)
      EXPECT_THROW(texts_in(whole.substr(0, cut)), formats::FormatError) << name << cut;
    std::mt19937_64 draw(7);
    for (int round = 0; round < 2000; ++round) {
      std::string changed = whole;
      for (int i = 0; i < 3; ++i) changed[draw() % changed.size()] = static_cast<char>(draw());
      try {
        for (const std::string& text : texts_in(changed)) EXPECT_EQ(first_invalid_utf8(text), text.npos);
      } catch (const formats::FormatError&) {
      }
    }
  }
}

using ParquetCorpus = OwnFolder;

TEST_F(ParquetCorpus, IsACorpusOfItsRows) {
  write_all(folder_ / "t.parquet", fixture("snappy"));
  const Corpus corpus({folder_ / "t.parquet"}, {});
  std::size_t documents = 0;
  for (const Chunk& chunk : corpus.chunks(10)) corpus.read(chunk, [&](std::string_view) { ++documents; });
  EXPECT_EQ(documents, 45U) << "rows that are empty or null are left out";
}

}  // namespace
}  // namespace trireme::data
