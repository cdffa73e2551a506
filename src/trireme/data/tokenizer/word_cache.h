// data/tokenizer/word_cache.h -- words that were met before, with their tokens: one line of the processor's cache each.
//
// A slot holds one word; the next word that falls there replaces it. Frequent words come back soon, so nothing is
// counted or moved. Long words and those of many tokens are not kept.
// Depends on: std.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace trireme::data {

class WordCache {
 public:
  static constexpr std::size_t kMostBytes = 30, kMostTokens = 8;

  WordCache() : slots_(kSlots) {}

  static std::uint64_t hash(std::string_view word) {
    // Eight bytes at a time; the rest by loads of constant size.
    const auto load = [&](std::size_t at, std::size_t count) {
      std::uint64_t value = 0;
      std::memcpy(&value, word.data() + at, count);
      return value;
    };
    std::uint64_t mixed = word.size() * 0x9E37'79B9'7F4A'7C15U;
    std::size_t at = 0;
    for (; at + 8 <= word.size(); at += 8) mixed = mix(mixed ^ load(at, 8));
    switch (word.size() - at) {  // constant counts: plain loads
      case 7:
      case 6:
      case 5:
        mixed = mix(mixed ^ load(at, 4) ^ load(word.size() - 4, 4) << 32);
        break;
      case 4:
        mixed = mix(mixed ^ load(at, 4));
        break;
      case 3:
        mixed = mix(mixed ^ load(at, 2) ^ load(at + 2, 1) << 16);
        break;
      case 2:
        mixed = mix(mixed ^ load(at, 2));
        break;
      case 1:
        mixed = mix(mixed ^ load(at, 1));
        break;
      default:
        break;
    }
    return mixed;
  }

  /// Empty: not there. `word` has at most kMostBytes.
  std::span<const std::int32_t> find(std::string_view word, std::uint64_t hash) const {
    const Slot& slot = slots_[hash >> (64 - kBits)];
    if (slot.bytes != word.size() || std::memcmp(slot.word, word.data(), word.size()) != 0) return {};
    return {slot.ids, slot.tokens};
  }
  void keep(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids) {
    if (ids.empty() || ids.size() > kMostTokens) return;
    Slot& slot = slots_[hash >> (64 - kBits)];
    slot.bytes = static_cast<std::uint8_t>(word.size());
    slot.tokens = static_cast<std::uint8_t>(ids.size());
    std::memcpy(slot.word, word.data(), word.size());
    std::memcpy(slot.ids, ids.data(), ids.size_bytes());
  }

 private:
  static constexpr int kBits = 15;
  static constexpr std::size_t kSlots = std::size_t{1} << kBits;
  struct alignas(64) Slot {
    std::uint8_t bytes = 0, tokens = 0;
    char word[kMostBytes];
    std::int32_t ids[kMostTokens];
  };
  static_assert(sizeof(Slot) == 64);

  static std::uint64_t mix(std::uint64_t value) {
    value *= 0xD6E8'FEB8'6659'FD93U;
    return value ^ value >> 32;
  }

  std::vector<Slot> slots_;
};

}  // namespace trireme::data
