#include "trireme/data/corpus/corpus.h"

#include <gmock/gmock.h>

#include "tests/data/tokenizer_samples.h"
#include "trireme/data/corpus/tokenize_corpus.h"
#include "trireme/data/token_file.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CorpusFiles : public OwnFolder {
 protected:
  std::vector<std::string> documents(const std::string& name, std::string_view text, CorpusOptions options = {},
                                     std::uint64_t chunk_bytes = 1 << 20) {
    write_all(folder_ / name, text);
    const Corpus corpus({folder_ / name}, std::move(options));
    std::vector<std::string> found;
    for (const Chunk& chunk : corpus.chunks(chunk_bytes))
      corpus.read(chunk, [&](std::string_view document) { found.emplace_back(document); });
    return found;
  }
  TokenizeOptions options(int threads = 1, std::uint64_t chunk_bytes = 64) {
    TokenizeOptions made{.out = folder_ / "out", .threads = threads, .chunk_bytes = chunk_bytes};
    made.progress.every = std::chrono::milliseconds::max();
    return made;
  }
  std::map<std::string, std::string> shards() {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_ / "out"))
      if (entry.path().extension() == ".shard") files[entry.path().filename()] = read_all(entry.path());
    return files;
  }
};

TEST_F(CorpusFiles, DocumentsOfATextAreWhereTheOptionSays) {
  const std::string text = "a\nb\n\n\nc\r\n---\n\nd";
  EXPECT_THAT(documents("t.txt", text), ElementsAre(text));
  EXPECT_THAT(documents("t.txt", text, {.split = DocumentSplit::kLines}), ElementsAre("a", "b", "c", "---", "d"));
  EXPECT_THAT(documents("t.txt", text, {.split = DocumentSplit::kBlankLines}),
              ElementsAre("a\nb\n", "c\r\n---\n", "d"));
  EXPECT_THAT(documents("t.txt", text, {.split = DocumentSplit::kSeparator, .separator = "---"}),
              ElementsAre("a\nb\n\n\nc\r\n", "\nd"));
  EXPECT_THAT(documents("t.txt", ""), ElementsAre());
}

TEST_F(CorpusFiles, DocumentsOfJsonLinesAreAField) {
  EXPECT_THAT(
      documents("t.jsonl", "{\"id\": 1, \"text\": \"a\\nb\"}\r\n\n{\"text\":\"\"}\n{\"text\":\"\\u00e9\",\"x\":[{}]}"),
      ElementsAre("a\nb", "é"));
  EXPECT_THAT(documents("t.jsonl", R"({"text": 1, "body": "x"})", {.field = "body"}), ElementsAre("x"));
}

TEST_F(CorpusFiles, ChunksOfAnySizeHoldTheSameDocuments) {
  std::string text, lines;
  for (int i = 0; i < 40; ++i) {
    text += std::string(static_cast<std::size_t>(i % 7), 'x') + "\n" + (i % 3 == 0 ? "\n" : "");
    lines += fmt::format("{{\"text\": \"{}\"}}\n", i);
  }
  for (const DocumentSplit split : {DocumentSplit::kLines, DocumentSplit::kBlankLines, DocumentSplit::kFile}) {
    const auto whole = documents("t.txt", text, {.split = split});
    for (const std::uint64_t bytes : {1, 2, 3, 7, 20, 50, 1000})
      EXPECT_EQ(documents("t.txt", text, {.split = split}, bytes), whole) << bytes;
  }
  for (const std::uint64_t bytes : {1, 5, 16, 17, 100}) EXPECT_EQ(documents("t.jsonl", lines, {}, bytes).size(), 40U);
}

TEST_F(CorpusFiles, ErrorsNameFileLineAndByte) {
  const auto said = [&](const std::string& name, const std::string& text, CorpusOptions options = {}) {
    return words_of([&] { documents(name, text, std::move(options)); });
  };
  EXPECT_THAT(said("t.txt", "good\nb\xFF"), AllOf(HasSubstr("t.txt: line 2: the byte 0xff"), HasSubstr("(byte 6)")));
  EXPECT_THAT(said("t.jsonl", "{\"text\":\"a\"}\n{\"text\":"),
              AllOf(HasSubstr("t.jsonl: line 2:"), HasSubstr("(byte 21)")));
  EXPECT_THAT(said("t.jsonl", "{\"text\":\"a\xFF\"}"), AllOf(HasSubstr("t.jsonl: line 1:"), HasSubstr("(byte 10)")));
  EXPECT_THAT(said("t.jsonl", "\n{\"txt\":\"a\"}"),
              AllOf(HasSubstr("line 2: the object has no field \"text\""), HasSubstr("--field")));
  EXPECT_THAT(said("t.jsonl", "{\"text\":7}"), HasSubstr("the field \"text\" is no text"));
  EXPECT_THAT(said("t.jsonl", "[1]"), HasSubstr("an object {...} is expected"));
  EXPECT_EQ(documents("t.txt", "b\xFF", {.any_bytes = true}).size(), 1U);
}

TEST_F(CorpusFiles, FoldersAreSearchedInTheOrderOfNames) {
  fs::create_directories(folder_ / "b");
  for (const char* name :
       {"z.txt", "b/x.jsonl.zst", "a.txt", "README.md", "page.html", "notes.txt.gz", "a.csv", "b.zst"})
    write_all(folder_ / name, "x");
  const std::vector<std::string> names{folder_.string()};
  EXPECT_THAT(find_corpus_files(names),
              ElementsAre(folder_ / "README.md", folder_ / "a.txt", folder_ / "b/x.jsonl.zst", folder_ / "notes.txt.gz",
                          folder_ / "page.html", folder_ / "z.txt"));
  const auto said_of = [&](const std::string& name) {
    return words_of([&] { find_corpus_files(std::vector<std::string>{name}); });
  };
  EXPECT_THAT(said_of(folder_ / "a.csv"),
              HasSubstr("is not .txt, .md, .html, .jsonl, any of these in .gz or .zst, or .parquet"));
  EXPECT_THAT(said_of("nowhere"), HasSubstr("no file or folder nowhere"));
}

TEST_F(CorpusFiles, ShardsAreTheSameForAnyNumberOfThreads) {
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += fmt::format("{{\"text\": \"line {} is here\"}}\n", i);
  write_all(folder_ / "t.jsonl", lines);
  const Corpus corpus({folder_ / "t.jsonl"}, {});
  const auto tokenizer = fixture_tokenizer("gpt2");
  const TokenizeResult one = tokenize_corpus(corpus, *tokenizer, options(1));
  const auto first = shards();
  EXPECT_GT(first.size(), 5U);
  EXPECT_EQ(one.documents, 30U);
  fs::remove_all(folder_ / "out");
  tokenize_corpus(corpus, *tokenizer, options(4));
  EXPECT_EQ(shards(), first);

  const TokenFile shard(one.shards[0]);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(shard.document_begin(1)));
  shard.read(0, ids);
  auto expected = tokenizer->encode("line 0 is here");
  expected.push_back(*tokenizer->roles().eos);
  EXPECT_EQ(ids, expected);
  EXPECT_EQ(shard.info().tokenizer_hash, tokenizer->hash());
}

TEST_F(CorpusFiles, GoesOnWithTheShardsThatAreMissing) {
  write_all(folder_ / "t.txt", "one two\nthree four\nfive six seven\neight\n");
  const Corpus corpus({folder_ / "t.txt"}, {.split = DocumentSplit::kLines});
  const auto tokenizer = Tokenizer::bytes();
  const TokenizeResult whole = tokenize_corpus(corpus, *tokenizer, options(1, 10));
  const auto before = shards();
  ASSERT_GT(before.size(), 2U);
  fs::remove(whole.shards[1]);
  write_all(whole.shards[1].string() + ".77-0.tmp", "half");  // what a crash leaves
  const TokenizeResult again = tokenize_corpus(corpus, *tokenizer, options(2, 10));
  EXPECT_EQ(again.kept, before.size() - 1);
  EXPECT_EQ(again.tokens, whole.tokens);
  EXPECT_EQ(shards(), before);

  write_all(whole.shards[0], before.begin()->second.substr(0, 100));
  EXPECT_THAT(words_of([&] { tokenize_corpus(corpus, *tokenizer, options(1, 10)); }), HasSubstr("00000.shard"));
}

TEST_F(CorpusFiles, RefusesToMixWhatWasMadeOtherwise) {
  write_all(folder_ / "t.txt", "one two\n");
  const Corpus corpus({folder_ / "t.txt"}, {});
  tokenize_corpus(corpus, *Tokenizer::bytes(), options());
  EXPECT_THAT(words_of([&] { tokenize_corpus(corpus, *fixture_tokenizer("gpt2"), options()); }),
              HasSubstr("tokenizer differs"));
  EXPECT_THAT(
      words_of([&] { tokenize_corpus(Corpus({folder_ / "t.txt"}, {.field = "x"}), *Tokenizer::bytes(), options()); }),
      HasSubstr("field differs"));
  EXPECT_EQ(tokenize_corpus(corpus, *Tokenizer::bytes(), options()).kept, 1U);
}

// What a failed call left is no reason to refuse the next corpus.
TEST_F(CorpusFiles, AFailedCallIsReplacedByTheNextCorpus) {
  write_all(folder_ / "bad.txt", "\xFF\n");
  EXPECT_THAT(
      words_of([&] { tokenize_corpus(Corpus({folder_ / "bad.txt"}, {}), *fixture_tokenizer("gpt2"), options()); }),
      HasSubstr("0xff"));
  EXPECT_FALSE(fs::exists(folder_ / "out")) << "nothing was made, so nothing is left";

  write_all(folder_ / "half.txt", "one two three\nfour five six\n\xFF\n");
  const auto tokenizer = fixture_tokenizer("gpt2");
  const Corpus half({folder_ / "half.txt"}, {.split = DocumentSplit::kLines});
  EXPECT_THROW(tokenize_corpus(half, *tokenizer, options(1, 10)), Error);
  EXPECT_EQ(shards().size(), 2U) << "shards that are whole stay for a second try";
  EXPECT_THROW(tokenize_corpus(half, *tokenizer, options(1, 10)), Error);

  write_all(folder_ / "good.txt", "seven eight\n");
  const TokenizeResult made = tokenize_corpus(Corpus({folder_ / "good.txt"}, {}), *tokenizer, options());
  EXPECT_EQ(made.kept, 0U);
  EXPECT_EQ(shards().size(), 1U);
  EXPECT_THAT(words_of([&] { tokenize_corpus(half, *tokenizer, options(1, 10)); }), HasSubstr("made otherwise"));
}

TEST_F(CorpusFiles, NoTextIsAnError) {
  for (const auto& [name, text] : {std::pair("t.txt", ""), std::pair("u.txt", "\n\n"),
                                   std::pair("t.jsonl", "{\"text\": \"\"}\n"), std::pair("t.html", "<p> </p>")}) {
    write_all(folder_ / name, text);
    const Corpus corpus({folder_ / name}, {.split = DocumentSplit::kLines});
    EXPECT_THAT(words_of([&] { tokenize_corpus(corpus, *Tokenizer::bytes(), options()); }),
                AllOf(HasSubstr("there is no document in"), HasSubstr(name)));
    EXPECT_FALSE(fs::exists(folder_ / "out")) << name;
  }
}

TEST_F(CorpusFiles, AFolderOfShardsIsDescribed) {
  write_all(folder_ / "t.txt", "one two\nthree\n");
  tokenize_corpus(Corpus({folder_ / "t.txt"}, {.split = DocumentSplit::kLines}), *Tokenizer::bytes(), options(1, 8));
  std::string text;
  for (const std::string& line : describe_folder(folder_ / "out", /*verify=*/true, 1)) text += line + "\n";
  EXPECT_THAT(text, AllOf(HasSubstr("shards     2 in"), HasSubstr("tokens     14 "), HasSubstr("documents  2\n"),
                          HasSubstr("vocabulary 257"), HasSubstr("\"bytes\", hash"), HasSubstr("special    eos 256"),
                          HasSubstr("made of    1 file, 14 B: "), HasSubstr("t.txt"), HasSubstr("checksums  all right"),
                          HasSubstr("00000.shard: 8 tokens in 1 document\nand 1 more")));
}

TEST_F(CorpusFiles, AnErrorLeavesNoHalfShardAndNamesTheFirstPlace) {
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += i >= 20 ? "{\"text\": 1}\n" : "{\"text\": \"some words\"}\n";
  write_all(folder_ / "t.jsonl", lines);
  const Corpus corpus({folder_ / "t.jsonl"}, {});
  EXPECT_THAT(words_of([&] { tokenize_corpus(corpus, *Tokenizer::bytes(), options(1)); }), HasSubstr("line 21"));
  for (const auto& [name, content] : shards()) EXPECT_NO_THROW(TokenFile(folder_ / "out" / name).verify()) << name;
  for (const auto& entry : fs::directory_iterator(folder_ / "out")) EXPECT_NE(entry.path().extension(), ".tmp");
}

TEST_F(CorpusFiles, WordsAreCountedAlikeByAnyNumberOfThreads) {
  write_all(folder_ / "t.txt", "a b a\na b\n");
  const Corpus corpus({folder_ / "t.txt"}, {.split = DocumentSplit::kLines});
  auto quiet = options().progress;
  const WordCounts counts = count_words(corpus, KnownPattern::kGpt2, 3, quiet);
  EXPECT_EQ(counts, (WordCounts{{"a", 2}, {" a", 1}, {" b", 2}}));
  EXPECT_EQ(count_words(corpus, KnownPattern::kGpt2, 1, quiet), counts);
}

}  // namespace
}  // namespace trireme::data
