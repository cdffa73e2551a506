// Opens Megatron's indexed data sets: NAME.idx says where in NAME.bin sequences lie and which of them make a document.
//
//   .idx   "MMIDIDX\0\0", uint64 version 1, uint8 type, uint64 sequences S, uint64 indices D,
//          int32 length[S], int64 byte[S], int64 document[D] (document d is sequences [document[d], document[d + 1])),
//          for multimodal data int8 mode[S]
//   .bin   the sequences' tokens, one after the other
#include <fmt/format.h>

#include "trireme/data/token_parts.h"

namespace trireme::data {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::uint64_t kVersionAt = 9, kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26, kTablesAt = 34;
constexpr const char* kFetchBothAgain = "fetch both files again, or make them again";

TokenType type_of(const MappedFile& index) {
  const auto code = load<std::uint8_t>(index.bytes().data() + kTypeAt);
  switch (code) {
    case 1:
      return TokenType::kUint8;
    case 2:
      return TokenType::kInt8;
    case 3:
      return TokenType::kInt16;
    case 4:
      return TokenType::kInt32;
    case 5:
      return TokenType::kInt64;
    case 8:
      return TokenType::kUint16;
    case 6:
    case 7:
      fail_at(index, kTypeAt, "holds floating-point numbers, which are no tokens");
    default:
      fail_at(index, kTypeAt, fmt::format("the type {} of tokens is unknown", code), kFetchBothAgain);
  }
}

/// Sequences follow each other and fill the .bin exactly.
void check_sequences(const TokenParts& parts, const std::byte* lengths) {
  const MappedFile& index = *parts.index;
  const std::uint64_t token_bytes = bytes_of(parts.type);
  std::uint64_t expected = 0;
  for (std::int64_t sequence = 0; sequence < parts.sequences; ++sequence) {
    const auto length = load<std::int32_t>(lengths + sequence * 4);
    const auto pointer = load<std::int64_t>(parts.sequence_pointers + sequence * 8);
    const auto byte = [&](const std::byte* at) { return static_cast<std::uint64_t>(at - index.bytes().data()); };
    if (length < 0)
      fail_at(index, byte(lengths + sequence * 4), fmt::format("sequence {} has {} tokens", sequence, length),
              kFetchBothAgain);
    if (pointer < 0 || static_cast<std::uint64_t>(pointer) != expected)
      fail_at(index, byte(parts.sequence_pointers + sequence * 8),
              fmt::format("sequence {} begins at byte {} of the .bin, but the one before it ends at {}", sequence,
                          pointer, expected),
              kFetchBothAgain);
    expected += static_cast<std::uint64_t>(length) * token_bytes;
  }
  if (parts.file.size() < expected)
    fail_at(parts.file, parts.file.size(),
            fmt::format("is cut short: it ends here, but {} says {} bytes", index.path().string(), expected),
            kFetchBothAgain);
  if (parts.file.size() > expected)
    fail_at(parts.file, expected,
            fmt::format("the tokens end here by {}, but {} more bytes follow", index.path().string(),
                        parts.file.size() - expected),
            kFetchBothAgain);
}

void check_documents(const TokenParts& parts, std::uint64_t at) {
  std::int64_t last = 0;
  for (std::int64_t document = 0; document <= parts.documents; ++document) {
    const auto sequence = load<std::int64_t>(parts.document_indices + document * 8);
    const std::uint64_t byte = at + static_cast<std::uint64_t>(document) * 8;
    if (document == 0 && sequence != 0)
      fail_at(*parts.index, byte, fmt::format("document 0 begins with sequence {}", sequence), kFetchBothAgain);
    if (sequence < last || sequence > parts.sequences)
      fail_at(*parts.index, byte,
              fmt::format("document {} begins with sequence {}, which is not from {} to {}", document, sequence, last,
                          parts.sequences),
              kFetchBothAgain);
    last = sequence;
  }
  if (last != parts.sequences)
    fail_at(*parts.index, at, fmt::format("documents end with sequence {} of {}", last, parts.sequences),
            kFetchBothAgain);
}

}  // namespace

bool is_megatron_index(const MappedFile& file) { return file.text().substr(0, kMagic.size()) == kMagic; }

void open_megatron(TokenParts& parts) {
  const MappedFile& index = *parts.index;
  const std::byte* bytes = index.bytes().data();
  if (!is_megatron_index(index)) fail_at(index, 0, "is no index of Megatron's", "name a pair of .bin and .idx files");
  if (index.size() < kTablesAt)
    fail_at(index, index.size(), fmt::format("is cut short: it ends within the header of {} bytes", kTablesAt),
            kFetchBothAgain);
  const auto version = load<std::uint64_t>(bytes + kVersionAt);
  if (version != 1) fail_at(index, kVersionAt, fmt::format("version {} is unknown; it should be 1", version));
  parts.type = type_of(index);
  const auto sequences = load<std::uint64_t>(bytes + kSequencesAt);
  const auto indices = load<std::uint64_t>(bytes + kDocumentsAt);
  const std::uint64_t room = index.size() - kTablesAt;
  if (indices == 0) fail_at(index, kDocumentsAt, "does not say where the last document ends", kFetchBothAgain);
  if (sequences > room / 12 || indices > (room - sequences * 12) / 8)
    fail_at(index, index.size(),
            fmt::format("is cut short: it ends here, but has {} sequences and {} documents", sequences, indices - 1),
            kFetchBothAgain);
  const std::uint64_t used = sequences * 12 + indices * 8;
  if (room != used && room != used + sequences)  // one byte a sequence more: the modes of multimodal data
    fail_at(index, kTablesAt + used, fmt::format("the tables end here, but {} more bytes follow", room - used),
            kFetchBothAgain);

  parts.format = TokenFormat::kMegatron;
  parts.sequences = static_cast<std::int64_t>(sequences);
  parts.documents = static_cast<std::int64_t>(indices) - 1;
  parts.sequence_pointers = bytes + kTablesAt + sequences * 4;
  parts.document_indices = bytes + kTablesAt + sequences * 12;
  parts.tokens = static_cast<std::int64_t>(parts.file.size() / bytes_of(parts.type));
  check_sequences(parts, bytes + kTablesAt);
  check_documents(parts, kTablesAt + sequences * 12);
}

}  // namespace trireme::data
