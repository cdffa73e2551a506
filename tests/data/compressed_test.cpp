#include <gmock/gmock.h>
#include <zlib.h>
#include <zstd.h>

#include "tests/data/tokenizer_samples.h"
#include "trireme/data/corpus/corpus.h"
#include "trireme/data/corpus/decompress.h"
#include "trireme/data/corpus/html_text.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string gzipped(std::string_view text) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::bad_alloc();
  std::string out(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd_of(std::string_view text, int level = 3) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), level));
  return out;
}

std::string unpacked(Compression compression, std::string_view bytes) {
  Decompressor stream(compression, bytes, "t.gz");
  std::string out;
  while (stream.read(out)) {
  }
  return out;
}

TEST(Decompressor, GivesBackWhatWasPacked) {
  std::mt19937_64 draw(1);
  for (const std::size_t characters : {0, 1, 1000, 1'500'000}) {
    const std::string text = random_text(draw, characters);
    EXPECT_TRUE(unpacked(Compression::kGzip, gzipped(text)) == text) << characters;
    EXPECT_TRUE(unpacked(Compression::kZstd, zstd_of(text)) == text) << characters;
  }
}

TEST(Decompressor, SeveralMembersAreOneText) {
  EXPECT_EQ(unpacked(Compression::kGzip, gzipped("one ") + gzipped("") + gzipped("two")), "one two");
  EXPECT_EQ(unpacked(Compression::kZstd, zstd_of("one ") + zstd_of("") + zstd_of("two")), "one two");
}

TEST(Decompressor, SaysWhatIsDamagedAndWhere) {
  for (const auto& [compression, bytes] : {std::pair(Compression::kGzip, gzipped("some words and some more")),
                                           std::pair(Compression::kZstd, zstd_of("some words and some more"))}) {
    const auto said = [&, compression = compression](const std::string& changed) {
      return words_of([&] { unpacked(compression, changed); });
    };
    for (std::size_t cut = 1; cut < bytes.size(); ++cut)
      EXPECT_THAT(said(bytes.substr(0, cut)), HasSubstr("t.gz: is cut short: it ends within compressed text (byte "));
    EXPECT_THAT(said("plain text"), AllOf(HasSubstr("t.gz: is damaged or has another format"), HasSubstr("(byte ")));
    EXPECT_THAT(said(bytes + "more"), HasSubstr("t.gz: is "));
  }
}

// A few hundred bytes that unpack to gigabytes: refused after some megabytes.
TEST(Decompressor, RefusesWhatGrowsAsNoTextDoes) {
  std::string bomb;
  const std::string frame = zstd_of(std::string(16 << 20, ' '));
  for (int i = 0; i < 64; ++i) bomb += frame;
  ASSERT_LT(bomb.size(), 200'000U);
  Decompressor stream(Compression::kZstd, bomb, "bomb.zst");
  std::string out;
  std::uint64_t made = 0;
  EXPECT_THAT(words_of([&] {
                while (stream.read(out)) {
                  made += out.size();
                  out.clear();
                }
              }),
              AllOf(HasSubstr("bomb.zst: unpacks to more than 256 times its"), HasSubstr("unpack it yourself")));
  EXPECT_LE(made, Decompressor::kAlwaysAllowed + (1 << 20));
}

class CompressedCorpus : public OwnFolder {
 protected:
  std::vector<std::string> documents(const std::string& name, const std::string& bytes, CorpusOptions options = {}) {
    write_all(folder_ / name, bytes);
    const Corpus corpus({folder_ / name}, std::move(options));
    std::vector<std::string> found;
    for (const Chunk& chunk : corpus.chunks(1000))
      corpus.read(chunk, [&](std::string_view document) { found.emplace_back(document); });
    return found;
  }
};

// More than goes through memory at once, with documents across the pieces' ends.
TEST_F(CompressedCorpus, HoldsTheDocumentsOfTheTextInIt) {
  std::string lines, text;
  for (int i = 0; i < 30'000; ++i) {
    const std::string words(static_cast<std::size_t>(i % 97), 'x');
    lines += fmt::format("{{\"text\": \"{} {}\"}}\n", i, words);
    text += fmt::format("{} {}\n{}", i, words, i % 3 == 0 ? "\n" : "");
  }
  ASSERT_GT(text.size(), 1U << 20);
  const auto expected = documents("t.jsonl", lines);
  ASSERT_EQ(expected.size(), 30'000U);
  EXPECT_EQ(documents("t.jsonl.gz", gzipped(lines)), expected);
  EXPECT_EQ(documents("t.jsonl.zst", zstd_of(lines)), expected);
  for (const DocumentSplit split : {DocumentSplit::kFile, DocumentSplit::kLines, DocumentSplit::kBlankLines})
    EXPECT_EQ(documents("t.txt.zst", zstd_of(text), {.split = split}), documents("t.txt", text, {.split = split}));
  EXPECT_EQ(documents("t.md.gz", gzipped("# one\n*two*\n")), std::vector<std::string>{"# one\n*two*\n"});
  EXPECT_EQ(documents("t.html.zst", zstd_of("<p>one</p>two")), std::vector<std::string>{"one\n\ntwo"});
}

TEST_F(CompressedCorpus, ErrorsNameTheLineAndByteOfTheText) {
  std::string lines;
  while (lines.size() < 3U << 20) lines += "{\"text\": \"some words of no importance\"}\n";
  const auto line = 1 + std::ranges::count(lines, '\n');
  EXPECT_THAT(words_of([&] { documents("t.jsonl.zst", zstd_of(lines + "{\"text\": 7}\n")); }),
              AllOf(HasSubstr(fmt::format("t.jsonl.zst: line {}: ", line)),
                    HasSubstr(fmt::format("(byte {})", lines.size() + 9))));
  EXPECT_THAT(
      words_of([&] { documents("t.txt.gz", gzipped(lines + "\xFF"), {.split = DocumentSplit::kLines}); }),
      AllOf(HasSubstr(fmt::format("line {}: the byte 0xff", line)), HasSubstr(fmt::format("(byte {})", lines.size()))));
  EXPECT_THAT(words_of([&] { documents("t.txt.gz", "no gzip"); }), HasSubstr("t.txt.gz: is damaged"));
}

TEST(HtmlText, IsWhatAReaderSees) {
  EXPECT_EQ(
      html_text("<html><head><title>No</title><style>p{}</style></head><body><h1>One</h1>\n <p>two  <b>three</b>\n"
                "four<br>five</p><script>if (a < b) x();</script></body></html>"),
      "One\n\ntwo three four\nfive");
  EXPECT_EQ(html_text("a<ul><li>b</li><li>c</li></ul>d"), "a\n\nb\nc\n\nd");
  EXPECT_EQ(html_text("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>"), "a\tb\nc");
  EXPECT_EQ(html_text("x<pre>\n a  b\n  c\n</pre>y"), "x\n\n a  b\n  c\n\n\ny");
  EXPECT_EQ(html_text("<div>a</div><div>b</div>"), "a\nb");
  EXPECT_EQ(html_text("a<!-- <p>no</p> --><!DOCTYPE x><?php no ?>b"), "ab");
  EXPECT_EQ(html_text("<a href=\"a>b\" title='x>y'>link</a>"), "link");
  EXPECT_EQ(html_text("\xEF\xBB\xBFmark"), "mark");
}

TEST(HtmlText, ReferencesBecomeCharacters) {
  EXPECT_EQ(html_text("&lt;b&gt; &amp;amp; &eacute;&#233;&#xE9; &hellip;&#8364;&#128;"), "<b> &amp; ééé …€€");
  EXPECT_EQ(html_text("AT&T &unknown; &; & &ampx &#; &#0; &#xD800; &#99999999999;"),
            "AT&T &unknown; &; & &x &#; \uFFFD \uFFFD \uFFFD");
}

TEST(HtmlText, WhatIsNoTagIsText) {
  EXPECT_EQ(html_text("a < b <3 <> </> x>y"), "a < b <3 <> </> x>y");
  EXPECT_EQ(html_text("one <unfinished tag"), "one");
  EXPECT_EQ(html_text("a<script>b"), "a");
  EXPECT_EQ(html_text(""), "");
}

}  // namespace
}  // namespace trireme::data
