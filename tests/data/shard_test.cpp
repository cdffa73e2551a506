#include <gmock/gmock.h>

#include "tests/data/token_files.h"
#include "trireme/data/shard_format.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {
namespace {

using formats::FormatError;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Shard : public OwnFolder {
 protected:
  fs::path path() const { return folder_ / "a.shard"; }
};

TEST_F(Shard, HoldsWhatWasWritten) {
  for (const std::int64_t vocabulary : {1, 300, 65536, 65537, 200000}) {
    for (const std::size_t count : {0, 1, 2, 37}) {
      const auto documents = random_documents(count, count, 4000, static_cast<std::uint64_t>(vocabulary));
      const ShardInfo info = {.vocab_size = vocabulary,
                              .tokenizer_hash = 0x0123456789ABCDEF,
                              .tokenizer = "bpe of tests",
                              .special = {.bos = 1, .eos = 2, .mask = 7}};
      write_shard(path(), documents, info);
      const TokenFile file(path());
      EXPECT_EQ(file.format(), TokenFormat::kShard);
      EXPECT_EQ(bytes_of(file.type()), vocabulary <= 65536 ? 2 : 4);
      EXPECT_EQ(file.info(), info);
      EXPECT_EQ(file.bytes(), fs::file_size(path()));
      EXPECT_FALSE(file.has_mask());
      expect_documents(file, documents);
      file.verify();
    }
  }
}

TEST_F(Shard, KeepsMasksOfDocumentsThatHaveThem) {
  const auto documents = random_documents(5, 50, 30, 100);
  std::vector<std::vector<std::uint8_t>> masks(documents.size());
  const Random random(5, "masks");
  ShardWriter writer(path(), {.vocab_size = 100});
  std::uint64_t draw = 0;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    masks[d].assign(documents[d].size(), 1);
    const bool has_mask = d > 3 && random.below(2, draw++) == 1;
    if (has_mask) {
      for (auto& bit : masks[d]) bit = static_cast<std::uint8_t>(random.below(2, draw++));
    }
    writer.add_document(documents[d], has_mask ? masks[d] : std::vector<std::uint8_t>{});
  }
  writer.finish();
  const TokenFile file(path());
  expect_documents(file, documents);
  EXPECT_TRUE(file.has_mask());
  for (std::size_t d = 0; d < documents.size(); ++d) {
    std::vector<std::uint8_t> mask(documents[d].size());
    file.read_mask(file.document_begin(static_cast<std::int64_t>(d)), mask);
    EXPECT_EQ(mask, masks[d]) << d;
  }
  file.verify();
}

TEST_F(Shard, AppearsWholeOrNotAtAll) {
  {
    ShardWriter writer(path(), {.vocab_size = 10});
    writer.add_document(std::vector<std::int32_t>{1, 2, 3});
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Shard, RefusesTokensOutsideTheVocabularyAndGoesOn) {
  ShardWriter writer(path(), {.vocab_size = 10});
  writer.add_document(std::vector<std::int32_t>{9});
  const auto bad = [&](std::int32_t token) {
    return message_of<ConfigError>([&] { writer.add_document(std::vector<std::int32_t>{0, token}); });
  };
  EXPECT_THAT(bad(10), HasSubstr("token 1 of document 1 is 10, but the vocabulary has 10"));
  EXPECT_THAT(bad(-1), HasSubstr("is -1"));
  const std::vector<std::uint8_t> mask(3);
  EXPECT_THAT(message_of<ConfigError>([&] { writer.add_document(std::vector<std::int32_t>{0}, mask); }),
              HasSubstr("document 1 has 1 tokens, but a mask of 3"));
  writer.add_document(std::vector<std::int32_t>{4, 5});
  writer.finish();
  expect_documents(TokenFile(path()), {{9}, {4, 5}});
}

TEST_F(Shard, RefusesVocabulariesThatCannotBeAndHalfPairs) {
  EXPECT_THAT(message_of<ConfigError>([&] { ShardWriter(path(), {}); }), HasSubstr("a vocabulary of 0"));
  ShardWriter writer(path(), {.vocab_size = 5, .pairs = true});
  writer.add_document(std::vector<std::int32_t>{4});
  EXPECT_THAT(message_of<ConfigError>([&] { writer.finish(); }), HasSubstr("has 1 documents, but pairs"));
}

/// Where an error says the damage is: "(byte 12)" or, for a block, "between the bytes 256 and 65792".
std::pair<std::uint64_t, std::uint64_t> named_bytes(const std::string& message) {
  constexpr std::string_view kBlock = "between the bytes ", kByte = "(byte ";
  const auto number_after = [&](std::string_view words) {
    const std::size_t at = message.rfind(words);
    return at == message.npos ? ~0ULL : std::strtoull(message.c_str() + at + words.size(), nullptr, 10);
  };
  const std::uint64_t byte = number_after(kByte);
  if (message.find(kBlock) == message.npos) return {byte, byte};
  EXPECT_EQ(number_after(kBlock), byte) << message;
  return {byte, number_after(fmt::format("{}{} and ", kBlock, byte))};
}

TEST_F(Shard, FindsEveryChangedByteAndSaysWhere) {
  // Several blocks of tokens, and a mask and a table that share blocks with their neighbours.
  const auto documents = random_documents(11, 40, 9000, 1000);
  ShardWriter writer(path(), {.vocab_size = 1000, .tokenizer_hash = 3, .tokenizer = "t"});
  for (const auto& document : documents) writer.add_document(document, std::vector<std::uint8_t>(document.size(), 1));
  writer.finish();
  const std::string whole = read_all(path());
  ShardHeader header;
  std::memcpy(&header, whole.data(), sizeof header);
  const ShardLayout layout = shard_layout(header);
  ASSERT_GT(layout.blocks, 4U);
  ASSERT_EQ(layout.end, whole.size());
  const std::uint64_t parts[] = {0,           layout.tokens,    layout.mask, layout.documents,
                                 layout.text, layout.checksums, layout.end};
  const Random random(1, "flips");
  std::uint64_t draw = 0;
  for (std::size_t part = 0; part + 1 < std::size(parts); ++part) {
    for (int flip = 0; flip < 60; ++flip) {
      const std::uint64_t at = parts[part] + random.below(parts[part + 1] - parts[part], draw++);
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << random.below(8, draw++)));
      write_all(path(), damaged);
      const std::string message = message_of<FormatError>([&] { TokenFile(path()).verify(); });
      const auto [begin, end] = named_bytes(message);
      EXPECT_LT(begin, whole.size()) << message;
      if (at >= layout.tokens && at < layout.checksums) {
        EXPECT_LE(begin, at) << message;
        EXPECT_GT(end, at) << message;
        EXPECT_LE(end - begin, kShardBlockBytes);
      } else if (at >= layout.checksums) {
        EXPECT_EQ(begin, layout.checksums) << message;
      } else {
        EXPECT_LT(begin, sizeof(ShardHeader)) << message;
      }
      if (at >= layout.tokens && at < layout.mask) {  // reading alone finds it too
        EXPECT_EQ(message, message_of<FormatError>([&] {
                    const TokenFile file(path());
                    read_tokens(file, 0, file.tokens());
                  }));
      }
    }
  }
}

TEST_F(Shard, NamesWhereItWasCutShort) {
  write_shard(path(), random_documents(12, 30, 5000, 1000), {.vocab_size = 1000});
  const std::string whole = read_all(path());
  const Random random(2, "cuts");
  for (std::uint64_t cut = 0; cut < 200; ++cut) {
    const std::uint64_t size = cut < 2 ? cut : random.below(whole.size(), cut);
    write_all(path(), std::string_view(whole).substr(0, size));
    const std::string message = message_of<FormatError>([&] { TokenFile{path()}; });
    EXPECT_THAT(message, size < 8 ? HasSubstr("(byte 0)") : HasSubstr(fmt::format("(byte {})", size)));
  }
  write_all(path(), whole + "x");
  EXPECT_THAT(message_of<FormatError>([&] { TokenFile{path()}; }), HasSubstr("but 1 more bytes follow"));
}

TEST_F(Shard, CanBeReadWithoutCheckingBlocks) {
  write_shard(path(), {{1, 2, 3}, std::vector<std::int32_t>(200000, 4)}, {.vocab_size = 1000});
  std::string damaged = read_all(path());
  damaged[sizeof(ShardHeader)] = 9;
  write_all(path(), damaged);
  const TokenFile file(path(), {.check_blocks = false});
  EXPECT_THAT(read_tokens(file, 0, 3), ElementsAre(9, 2, 3));
  EXPECT_THAT(message_of<FormatError>([&] { file.verify(); }),
              HasSubstr("tokens are damaged between the bytes 256 and"));
  const TokenFile checking(path());
  EXPECT_THAT(read_tokens(checking, 100000, 2), ElementsAre(4, 4));  // another block
  EXPECT_THAT(message_of<FormatError>([&] { read_tokens(checking, 2, 1); }), HasSubstr("tokens are damaged"));
}

/// Files of version 1 as they were first written: a change of the format must not leave them behind.
TEST_F(Shard, OfVersionOneStayReadable) {
  const TokenFile narrow(fs::path(TRIREME_FIXTURES) / "tokens/narrow.shard");
  EXPECT_EQ(narrow.info(), (ShardInfo{.vocab_size = 300,
                                      .tokenizer_hash = 0x1122334455667788,
                                      .tokenizer = "bytes of tests",
                                      .special = {256, 257, 258, 259, 260, 261},
                                      .pairs = true}));
  Documents documents;
  for (std::int32_t d = 0; d < 6; ++d) {
    documents.emplace_back();
    for (std::int32_t i = 0; i < d * 5; ++i) documents.back().push_back((d * 37 + i * 11) % 300);
  }
  expect_documents(narrow, documents);
  std::vector<std::uint8_t> mask(10);
  narrow.read_mask(narrow.document_begin(3), mask);
  EXPECT_THAT(mask, ElementsAre(0, 1, 1, 0, 1, 1, 0, 1, 1, 0));
  narrow.verify();
  const TokenFile wide(fs::path(TRIREME_FIXTURES) / "tokens/wide.shard");
  expect_documents(wide, {{1, 69999, 3}, {65536}});
  wide.verify();
  write_shard(path(), {{1, 69999, 3}, {65536}}, {.vocab_size = 70000});
  EXPECT_EQ(read_all(path()), read_all(wide.path()));  // and are what is written today
}

TEST_F(Shard, IsDescribedForPeople) {
  write_shard(path(), {{5, 6}, {7}},
              {.vocab_size = 300, .tokenizer_hash = 0xAB, .tokenizer = "gpt2", .special = {.eos = 7}, .pairs = true});
  const TokenFile file(path());
  EXPECT_THAT(
      describe(file, false),
      ElementsAre("format     token shard, uint16 each", HasSubstr("bytes      "), "tokens     3 (3)",
                  "documents  2 in pairs of source and target, 1.5 tokens each on average", "vocabulary 300",
                  "tokenizer  \"gpt2\", hash 00000000000000ab", "special    eos 7",
                  "checksums  header and tables are right; tokens are checked as they are read", "begins     5 6 7"));
  EXPECT_THAT(describe(file, true), ::testing::Contains("checksums  all right"));
}

}  // namespace
}  // namespace trireme::data
