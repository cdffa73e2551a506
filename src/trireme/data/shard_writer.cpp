#include "trireme/data/shard_writer.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/data/shard_format.h"

namespace trireme::data {
namespace {

ShardInfo checked(ShardInfo info, const std::filesystem::path& path) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  if (info.vocab_size < 1 || info.vocab_size > kMost)
    throw ConfigError(fmt::format("{}: a vocabulary of {} tokens cannot be written", path.string(), info.vocab_size),
                      fmt::format("give the tokenizer's size, from 1 to {}", kMost));
  if (info.tokenizer.size() > kShardMostTextBytes)
    throw ConfigError(fmt::format("{}: the tokenizer's name has {} bytes, more than the {} there is room for",
                                  path.string(), info.tokenizer.size(), kShardMostTextBytes));
  return info;
}

}  // namespace

ShardWriter::ShardWriter(std::filesystem::path path, ShardInfo info)
    : info_(checked(std::move(info), path)),
      file_(std::move(path)),
      token_bytes_(info_.vocab_size <= 65536 ? 2 : 4),
      position_(sizeof(ShardHeader)) {
  block_.reserve(kShardBlockBytes);
}

void ShardWriter::check(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> learnt) const {
  if (!learnt.empty() && learnt.size() != tokens.size())
    throw ConfigError(fmt::format("{}: document {} has {} tokens, but a mask of {}", file_.path().string(),
                                  begins_.size(), tokens.size(), learnt.size()));
  const auto vocabulary = static_cast<std::uint64_t>(info_.vocab_size);
  const auto outside =
      std::ranges::find_if(tokens, [&](std::int32_t token) { return static_cast<std::uint32_t>(token) >= vocabulary; });
  if (outside != tokens.end())
    throw ConfigError(fmt::format("{}: token {} of document {} is {}, but the vocabulary has {}", file_.path().string(),
                                  outside - tokens.begin(), begins_.size(), *outside, info_.vocab_size),
                      "give the vocabulary of the tokenizer that made the tokens");
  if (tokens.size() > kShardMostTokens - tokens_)
    throw ConfigError(fmt::format("{}: more than {} tokens", file_.path().string(), kShardMostTokens),
                      "begin another shard");
}

void ShardWriter::add_document(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> learnt) {
  check(tokens, learnt);
  begins_.push_back(tokens_);
  add_mask(tokens.size(), learnt);
  tokens_ += tokens.size();
  if (token_bytes_ == 4) return append(std::as_bytes(tokens));
  narrow_.resize(tokens.size());
  std::ranges::transform(tokens, narrow_.begin(), [](std::int32_t token) { return static_cast<std::uint16_t>(token); });
  append(std::as_bytes(std::span(narrow_)));
}

void ShardWriter::add_mask(std::size_t tokens, std::span<const std::uint8_t> learnt) {
  has_mask_ |= !learnt.empty();
  if (!has_mask_) return;
  // All bits from the end of the mask on are set first: those of documents without a mask, of this one too.
  mask_.resize((tokens_ + tokens + 7) / 8, 0xFF);
  for (std::size_t i = 0; i < learnt.size(); ++i) {
    const std::uint64_t at = tokens_ + i;
    if (learnt[i] == 0) mask_[at / 8] &= static_cast<std::uint8_t>(~(1U << (at % 8)));
  }
}

void ShardWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t taken = std::min(bytes.size(), kShardBlockBytes - block_.size());
    block_.insert(block_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(taken));
    bytes = bytes.subspan(taken);
    position_ += taken;
    if (block_.size() == kShardBlockBytes) end_block();
  }
}

void ShardWriter::pad() {
  constexpr std::byte kZeros[8] = {};
  append(std::span(kZeros).first((8 - position_ % 8) % 8));
}

void ShardWriter::end_block() {
  if (block_.empty()) return;
  checksums_.push_back(shard_checksum(block_));
  file_.write_at(position_ - block_.size(), block_);
  block_.clear();
}

void ShardWriter::finish() {
  if (info_.pairs && begins_.size() % 2 != 0)
    throw ConfigError(
        fmt::format("{}: has {} documents, but pairs of them are wanted", file_.path().string(), begins_.size()),
        "add each source's target right after it");
  ShardHeader header;
  header.token_bytes = token_bytes_;
  header.flags = (has_mask_ ? kShardHasMask : 0U) | (info_.pairs ? kShardHasPairs : 0U);
  header.text_bytes = static_cast<std::uint32_t>(info_.tokenizer.size());
  header.tokens = tokens_;
  header.documents = begins_.size();
  header.vocab_size = static_cast<std::uint64_t>(info_.vocab_size);
  header.tokenizer_hash = info_.tokenizer_hash;
  const SpecialTokens& special = info_.special;
  header.special = {special.bos, special.eos, special.pad, special.mask, special.cls, special.sep};
  const ShardLayout layout = shard_layout(header);

  pad();
  append(std::as_bytes(std::span(mask_)));
  pad();
  begins_.push_back(tokens_);
  append(std::as_bytes(std::span(begins_)));
  begins_.pop_back();
  append(std::as_bytes(std::span(info_.tokenizer)));
  pad();
  end_block();
  TRIREME_CHECK(position_ == layout.checksums && checksums_.size() == layout.blocks,
                "{} is at byte {} with {} blocks, not at {} with {}", file_.path().string(), position_,
                checksums_.size(), layout.checksums, layout.blocks);
  file_.write_at(position_, std::as_bytes(std::span(checksums_)));
  header.file_bytes = layout.end;
  header.checksums_checksum = shard_checksum(std::as_bytes(std::span(checksums_)));
  header.checksum = header_checksum(header);
  file_.write_at(0, std::as_bytes(std::span(&header, 1)));
  file_.publish();
}

}  // namespace trireme::data
