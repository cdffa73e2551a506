// Files of other systems, written here byte by byte after their published layout.
#include <gmock/gmock.h>

#include "tests/data/token_files.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {
namespace {

using formats::FormatError;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenFormats : public OwnFolder {};

struct Megatron {
  std::string bin, idx;
};

/// Sequences of tokens; `document_ends`: how many sequences there are at the end of each document.
Megatron megatron(const Documents& sequences, const std::vector<std::int64_t>& document_ends, int code, int bytes) {
  Megatron files;
  files.idx.assign("MMIDIDX\0\0", 9);
  put<std::uint64_t>(files.idx, 1);
  put<std::uint8_t>(files.idx, static_cast<std::uint8_t>(code));
  put<std::uint64_t>(files.idx, sequences.size());
  put<std::uint64_t>(files.idx, document_ends.size() + 1);
  for (const auto& sequence : sequences) put<std::int32_t>(files.idx, static_cast<std::int32_t>(sequence.size()));
  for (const auto& sequence : sequences) {
    put<std::int64_t>(files.idx, static_cast<std::int64_t>(files.bin.size()));
    for (const std::int32_t token : sequence) {
      for (int i = 0; i < bytes; ++i) files.bin.push_back(static_cast<char>(i < 4 ? token >> (8 * i) & 0xFF : 0));
    }
  }
  put<std::int64_t>(files.idx, 0);
  for (const std::int64_t end : document_ends) put<std::int64_t>(files.idx, end);
  return files;
}

/// Four sequences in three documents, the second of them empty.
const Documents kSequences = {{1, 2, 3}, {4}, {}, {5, 6, 100}};
const Documents kJoined = {{1, 2, 3, 4}, {}, {5, 6, 100}};
const std::vector<std::int64_t> kEnds = {2, 2, 4};

TEST_F(TokenFormats, MegatronPairsAreReadInEveryType) {
  const struct {
    int code, bytes;
    TokenType type;
  } types[] = {{1, 1, TokenType::kUint8}, {2, 1, TokenType::kInt8},  {3, 2, TokenType::kInt16},
               {4, 4, TokenType::kInt32}, {5, 8, TokenType::kInt64}, {8, 2, TokenType::kUint16}};
  for (const auto& [code, bytes, type] : types) {
    const Megatron files = megatron(kSequences, kEnds, code, bytes);
    write_all(folder_ / "text_document.bin", files.bin);
    write_all(folder_ / "text_document.idx", files.idx);
    for (const char* name : {"text_document", "text_document.bin", "text_document.idx"}) {
      const TokenFile file(folder_ / name);
      EXPECT_EQ(file.format(), TokenFormat::kMegatron);
      EXPECT_EQ(file.type(), type);
      expect_documents(file, kJoined);
      file.verify();
    }
  }
}

TEST_F(TokenFormats, MegatronModesOfMultimodalDataAreSkipped) {
  Megatron files = megatron(kSequences, kEnds, 4, 4);
  files.idx.append(kSequences.size(), '\1');
  write_all(folder_ / "a.bin", files.bin);
  write_all(folder_ / "a.idx", files.idx);
  expect_documents(TokenFile(folder_ / "a"), kJoined);
}

TEST_F(TokenFormats, DamageToMegatronPairsIsNamed) {
  const Megatron good = megatron(kSequences, kEnds, 4, 4);
  const auto message = [&](const std::string& bin, const std::string& idx) {
    write_all(folder_ / "a.bin", bin);
    write_all(folder_ / "a.idx", idx);
    return message_of<FormatError>([&] { TokenFile(folder_ / "a.bin").verify(); });
  };
  const auto changed = [&](std::size_t at, char byte) {
    std::string idx = good.idx;
    idx[at] = byte;
    return message(good.bin, idx);
  };
  EXPECT_THAT(changed(0, 'X'), HasSubstr("a.idx: is no index of Megatron's (byte 0)"));
  EXPECT_THAT(changed(9, 2), HasSubstr("version 2 is unknown; it should be 1 (byte 9)"));
  EXPECT_THAT(changed(17, 7), HasSubstr("floating-point numbers, which are no tokens (byte 17)"));
  EXPECT_THAT(changed(17, 99), HasSubstr("the type 99 of tokens is unknown (byte 17)"));
  EXPECT_THAT(changed(18, 5), HasSubstr(fmt::format("(byte {})", good.idx.size())));
  EXPECT_THAT(changed(25, 127), HasSubstr("is cut short"));
  EXPECT_THAT(changed(33, 127), HasSubstr("is cut short"));
  EXPECT_THAT(changed(26, 0), HasSubstr("does not say where the last document ends (byte 26)"));
  EXPECT_THAT(changed(37, -1), HasSubstr("sequence 0 has -16777213 tokens (byte 34)"));
  EXPECT_THAT(changed(38, 2), HasSubstr("sequence 2 begins at byte 16 of the .bin, but the one before it ends at 20"));
  EXPECT_THAT(changed(34 + 16 + 32, 1), HasSubstr("document 0 begins with sequence 1 (byte 82)"));
  EXPECT_THAT(changed(34 + 16 + 32 + 16, 1), HasSubstr("which is not from 2 to 4 (byte 98)"));
  EXPECT_THAT(changed(34 + 16 + 32 + 24, 3), HasSubstr("documents end with sequence 3 of 4"));
  EXPECT_THAT(message(good.bin.substr(0, 11), good.idx), HasSubstr("a.bin: is cut short: it ends here, but"));
  EXPECT_THAT(message(good.bin.substr(0, 11), good.idx), HasSubstr("(byte 11)"));
  EXPECT_THAT(message(good.bin + "abcd", good.idx), HasSubstr("(byte 28)"));
  for (std::size_t size = 0; size < good.idx.size(); ++size)
    EXPECT_THAT(message(good.bin, good.idx.substr(0, size)), HasSubstr("(byte ")) << size;
  std::string bin = good.bin;
  bin[7] = '\x80';
  EXPECT_THAT(message(bin, good.idx), HasSubstr("token 1 is negative or beyond 31 bits, so no token at all (byte 4)"));
  fs::remove(folder_ / "a.idx");
  EXPECT_THAT(message_of<FormatError>([&] { TokenFile(folder_ / "a.bin"); }), HasSubstr("the first bytes are of none"));
}

std::string llmc(std::int32_t magic, std::int32_t version, const std::vector<std::int32_t>& tokens, int bytes) {
  std::string out;
  for (const std::int32_t word : {magic, version, static_cast<std::int32_t>(tokens.size())})
    put<std::int32_t>(out, word);
  out.resize(1024);
  for (const std::int32_t token : tokens) {
    for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(token >> (8 * i) & 0xFF));
  }
  return out;
}

TEST_F(TokenFormats, LlmcFilesAreReadInBothWidths) {
  const std::vector<std::int32_t> tokens = {50256, 1, 2, 50256, 3, 50256, 50256, 4};
  const auto path = folder_ / "a.bin";
  for (const bool narrow : {true, false}) {
    write_all(path, narrow ? llmc(20240520, 1, tokens, 2) : llmc(20240801, 7, tokens, 4));
    const TokenFile whole(path);
    EXPECT_EQ(whole.format(), TokenFormat::kLlmC);
    expect_documents(whole, {tokens});
    const TokenFile split(path, {.end_of_text = 50256});
    expect_documents(split, {{50256, 1, 2}, {50256, 3}, {50256}, {50256, 4}});
    expect_documents(TokenFile(path, {.end_of_text = 2}), {{50256, 1, 2}, {50256, 3, 50256, 50256, 4}});
    expect_documents(TokenFile(path, {.end_of_text = 4}), {tokens});
    expect_documents(TokenFile(path, {.end_of_text = 77777}), {tokens});
  }
  write_all(path, llmc(20240520, 1, {}, 2));
  EXPECT_EQ(TokenFile(path, {.end_of_text = 1}).tokens(), 0);
}

TEST_F(TokenFormats, DamageToLlmcFilesIsNamed) {
  const auto path = folder_ / "a.bin";
  const auto message = [&](const std::string& content) {
    write_all(path, content);
    return message_of<FormatError>([&] { TokenFile(path).verify(); });
  };
  const std::string good = llmc(20240801, 7, {1, 2, 3}, 4);
  EXPECT_THAT(message(good.substr(0, 100)), HasSubstr("ends within the header of 1024 bytes (byte 100)"));
  EXPECT_THAT(message(good.substr(0, 1031)), HasSubstr("is cut short: it ends here, but 3 tokens need 1036 bytes"));
  EXPECT_THAT(message(good + "x"), HasSubstr("(byte 1036)"));
  EXPECT_THAT(message(llmc(20240520, 7, {}, 2)), HasSubstr("version 7 is unknown; it should be 1 (byte 4)"));
  EXPECT_THAT(message(llmc(20240801, 7, {1, -5}, 4)), HasSubstr("token 1 is negative"));
  std::string negative = good;
  negative[11] = '\x80';
  EXPECT_THAT(message(negative), HasSubstr("(byte 8)"));
}

TEST_F(TokenFormats, TextIsBytesWhenItsNameSaysSo) {
  write_all(folder_ / "a.txt", "TRISHARD\xFF");
  const TokenFile file(folder_ / "a.txt");
  expect_documents(file, {{'T', 'R', 'I', 'S', 'H', 'A', 'R', 'D', 255}});
  EXPECT_EQ(file.info().vocab_size, 256);
  write_all(folder_ / "a.md", "some words");
  const std::string message = message_of<FormatError>([&] { TokenFile(folder_ / "a.md"); });
  EXPECT_THAT(message, HasSubstr("a.md: is no token shard, llm.c file or half of a Megatron pair"));
  EXPECT_THAT(message_of<IoError>([&] { TokenFile(folder_ / "missing"); }), HasSubstr("cannot be opened"));
}

}  // namespace
}  // namespace trireme::data
