#include "trireme/data/tokenizer/bpe_training.h"

#include <algorithm>
#include <queue>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/data/tokenizer/byte_alphabet.h"
#include "trireme/data/tokenizer/normalizer.h"
#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

using PairKey = std::uint64_t;
PairKey key_of(std::int32_t left, std::int32_t right) {
  return static_cast<PairKey>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}
struct KeyHash {
  std::size_t operator()(PairKey key) const {
    key *= 0x9E37'79B9'7F4A'7C15U;
    return key ^ key >> 32;
  }
};

struct PairRecord {
  std::int64_t count = 0;
  std::vector<std::uint32_t> words;  // where it may occur; each once
  bool changed = false;              // in the merge that is under way
};

/// A pair as it was when it was queued. The most frequent comes first; of equals the smallest numbers.
struct Candidate {
  std::int64_t count;
  PairKey pair;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(const WordCounts& words, const std::int32_t (&bytes)[256]) {
    // In a fixed order, so that a run takes the same steps every time.
    std::vector<const WordCounts::value_type*> sorted;
    for (const auto& word : words) sorted.push_back(&word);
    std::ranges::sort(sorted, {}, [](const auto* word) -> const std::string& { return word->first; });
    for (const auto* word : sorted) {
      auto& letters = words_.emplace_back();
      letters.reserve(word->first.size());
      for (const char byte : word->first) letters.push_back(bytes[static_cast<unsigned char>(byte)]);
      counts_.push_back(word->second);
      const auto number = static_cast<std::uint32_t>(words_.size() - 1);
      for (std::size_t i = 0; i + 1 < letters.size(); ++i) change(letters[i], letters[i + 1], word->second, number);
    }
    queue_changed();
  }

  /// The next pair to merge; count 0: there is none.
  Candidate next() {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const std::int64_t now = pairs_[top.pair].count;
      if (now == top.count && now > 0) return top;
      if (now > 0) queue_.push({now, top.pair});  // it became rarer since
    }
    return {0, 0};
  }

  void merge(PairKey pair, std::int32_t result) {
    const auto left = static_cast<std::int32_t>(pair >> 32), right = static_cast<std::int32_t>(pair & 0xFFFF'FFFF);
    const std::vector<std::uint32_t> where = std::exchange(pairs_[pair].words, {});
    for (const std::uint32_t word : where) merge_in(word, left, right, result);
    PairRecord& merged = pairs_[pair];
    merged.count = 0;  // of overlapping pairs, as in "aaa", some were counted that could not be merged
    merged.words.clear();
    queue_changed();
  }

 private:
  void change(std::int32_t left, std::int32_t right, std::int64_t by, std::uint32_t word) {
    const PairKey key = key_of(left, right);
    PairRecord& record = pairs_[key];
    record.count += by;
    if (by < 0) return;
    if (record.words.empty() || record.words.back() != word) record.words.push_back(word);
    if (!record.changed) changed_.push_back(key);
    record.changed = true;
  }

  void merge_in(std::uint32_t word, std::int32_t left, std::int32_t right, std::int32_t result) {
    auto& letters = words_[word];
    const std::int64_t count = counts_[word];
    std::size_t kept = 0;
    for (std::size_t i = 0; i < letters.size(); ++i) {
      if (letters[i] != left || i + 1 == letters.size() || letters[i + 1] != right) {
        letters[kept++] = letters[i];
        continue;
      }
      if (kept > 0) {
        change(letters[kept - 1], left, -count, word);
        change(letters[kept - 1], result, count, word);
      }
      if (i + 2 < letters.size()) {
        change(right, letters[i + 2], -count, word);
        change(result, letters[i + 2], count, word);
      }
      letters[kept++] = result;
      ++i;
    }
    letters.resize(kept);
  }

  void queue_changed() {
    for (const PairKey key : changed_) {
      PairRecord& record = pairs_[key];
      record.changed = false;
      if (record.count > 0) queue_.push({record.count, key});
    }
    changed_.clear();
  }

  std::vector<std::vector<std::int32_t>> words_;
  std::vector<std::int64_t> counts_;
  std::unordered_map<PairKey, PairRecord, KeyHash> pairs_;
  std::vector<PairKey> changed_;
  std::priority_queue<Candidate> queue_;
};

/// What stands around the model, as the published families have it.
TokenizerDescription around(const BpeTrainingOptions& options) {
  using PreKind = PreTokenizerPart::Kind;
  TokenizerDescription made;
  made.decoder = DecoderPart{.kind = DecoderPart::Kind::kByteLevel};
  PostProcessorPart post{.kind = PostProcessorPart::Kind::kByteLevel};
  post.byte_level.trim_offsets = false;
  if (options.pattern == KnownPattern::kGpt2) {
    made.pre_tokenizer = PreTokenizerPart{.kind = PreKind::kByteLevel, .byte_level = {.add_prefix_space = false}};
  } else {
    PreTokenizerPart cut{.kind = PreKind::kSplit};
    cut.pattern = {.regex = true, .text = std::string(pattern_text(options.pattern))};
    PreTokenizerPart bytes{.kind = PreKind::kByteLevel};
    bytes.byte_level = {.add_prefix_space = false, .use_regex = false};
    made.pre_tokenizer = PreTokenizerPart{.kind = PreKind::kSequence};
    made.pre_tokenizer->parts = {std::move(cut), std::move(bytes)};
    if (options.pattern == KnownPattern::kQwen) made.normalizer = NormalizerPart{.kind = NormalizerPart::Kind::kNfc};
  }
  for (std::size_t i = 0; i < options.special_tokens.size(); ++i)
    made.added_tokens.push_back(
        {.id = static_cast<std::int32_t>(i), .content = options.special_tokens[i], .special = true});
  if (options.begin.empty()) {
    made.post_processor = std::move(post);
    return made;
  }
  const auto at = std::ranges::find(options.special_tokens, options.begin);
  if (at == options.special_tokens.end())
    throw ConfigError(fmt::format("{} is to begin every text, but is no special token", options.begin));
  PostProcessorPart put{.kind = PostProcessorPart::Kind::kTemplate};
  put.single = {{.token = options.begin}, {.sequence = "A"}};
  put.pair = {{.token = options.begin},
              {.sequence = "A"},
              {.token = options.begin, .type_id = 1},
              {.sequence = "B", .type_id = 1}};
  put.special_tokens = {{.name = options.begin,
                         .ids = {static_cast<std::int32_t>(at - options.special_tokens.begin())},
                         .tokens = {options.begin}}};
  made.post_processor = PostProcessorPart{.kind = PostProcessorPart::Kind::kSequence};
  made.post_processor->parts = {std::move(post), std::move(put)};
  return made;
}

void check(const BpeTrainingOptions& options) {
  const auto least = static_cast<std::int32_t>(options.special_tokens.size()) + 256;
  if (options.vocab_size < least)
    throw ConfigError(fmt::format("a vocabulary of {} has no room for 256 bytes and {}", options.vocab_size,
                                  counted(options.special_tokens.size(), "special token")),
                      fmt::format("ask for {} or more", least));
  for (const std::string& token : options.special_tokens) {
    if (token.empty() || first_invalid_utf8(token) != token.npos)
      throw ConfigError("a special token is empty or not UTF-8");
    if (std::ranges::count(options.special_tokens, token) > 1)
      throw ConfigError(fmt::format("the special token {} is there twice", token));
    if (code_point(token, 0).bytes == token.size() && byte_of_letter(code_point(token, 0).code))
      throw ConfigError(fmt::format("the special token {} is one letter, which stands for a byte", token),
                        "make it longer");
  }
}

}  // namespace

void WordCounter::add(std::string_view text) {
  std::string memory;
  if (pattern_ == KnownPattern::kQwen && !is_surely_nfc(text)) text = memory = to_nfc(text);
  const CharacterClasses& classes = CharacterClasses::shared();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = piece_end(pattern_, classes, text, begin);
    word_.assign(text, begin, end - begin);
    ++counts_[word_];
    begin = end;
  }
}

void WordCounter::add(WordCounts&& others) {
  if (counts_.empty())
    counts_ = std::move(others);
  else
    for (const auto& [word, count] : others) counts_[word] += count;
}

TokenizerDescription train_bpe(const WordCounts& words, const BpeTrainingOptions& options) {
  check(options);
  TokenizerDescription made = around(options);
  auto& model = made.model.emplace<BpeDescription>();
  auto& vocabulary = model.vocabulary;
  std::unordered_map<std::string, std::int32_t> numbers;
  const auto add = [&](std::string token) {
    const auto id = static_cast<std::int32_t>(vocabulary.size());
    numbers.emplace(token, id);
    vocabulary.emplace_back(std::move(token), id);
    return id;
  };
  for (const std::string& token : options.special_tokens) add(token);
  // Bytes in the order of their letters, which is not that of the bytes.
  std::vector<std::pair<std::uint32_t, unsigned>> letters;
  for (unsigned byte = 0; byte < 256; ++byte) letters.emplace_back(byte_letters()[byte], byte);
  std::ranges::sort(letters);
  std::int32_t bytes[256];
  for (const auto& [letter, byte] : letters)
    bytes[byte] = add(bytes_to_letters(std::string(1, static_cast<char>(byte))));

  Trainer trainer(words, bytes);
  Progress progress("merge", options.vocab_size, "token", options.progress);
  while (static_cast<std::int32_t>(vocabulary.size()) < options.vocab_size) {
    const Candidate best = trainer.next();
    if (best.count < std::max<std::int64_t>(options.least_count, 1)) break;
    const auto left = static_cast<std::int32_t>(best.pair >> 32),
               right = static_cast<std::int32_t>(best.pair & 0xFFFF'FFFF);
    std::string token =
        vocabulary[static_cast<std::size_t>(left)].first + vocabulary[static_cast<std::size_t>(right)].first;
    const auto known = numbers.find(token);  // two ways to the same token are two merges
    const std::int32_t result = known != numbers.end() ? known->second : add(std::move(token));
    model.merges.push_back({left, right, result});
    trainer.merge(best.pair, result);
    progress.update(static_cast<std::int64_t>(vocabulary.size()));
  }
  return made;
}

}  // namespace trireme::data
