#include <gmock/gmock.h>

#include <map>

#include "tests/data/tokenizer_samples.h"
#include "trireme/data/tokenizer/bpe_model.h"
#include "trireme/data/tokenizer/bpe_training.h"
#include "trireme/data/tokenizer/byte_alphabet.h"

namespace trireme::data {
namespace {

using Ids = std::vector<std::int32_t>;

TokenizerDescription described(const std::string& name) {
  const auto path = tokenizer_fixtures() / (name + ".json");
  return parse_tokenizer_json(read_all(path), path.string());
}

/// The definition: as long as any neighbours merge, merge the first of those whose merge was learnt first.
class PlainBpe {
 public:
  explicit PlainBpe(const BpeDescription& model) {
    for (const auto& [token, id] : model.vocabulary) numbers_[token] = id;
    for (std::size_t i = 0; i < model.merges.size(); ++i)
      merges_[{model.merges[i].left, model.merges[i].right}] = {i, model.merges[i].result};
  }
  Ids encode(const std::vector<std::string>& letters) const {
    Ids ids;
    for (const std::string& letter : letters) {
      if (const auto found = numbers_.find(letter); found != numbers_.end()) {
        ids.push_back(found->second);
      } else {
        for (const char byte : letter)
          ids.push_back(numbers_.at(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte))));
      }
    }
    for (;;) {
      std::size_t best = ids.size();
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        if (!merges_.contains({ids[i], ids[i + 1]})) continue;
        if (best == ids.size() || merges_.at({ids[i], ids[i + 1]}) < merges_.at({ids[best], ids[best + 1]})) best = i;
      }
      if (best == ids.size()) return ids;
      ids[best] = merges_.at({ids[best], ids[best + 1]}).second;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }

 private:
  std::map<std::string, std::int32_t> numbers_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::size_t, std::int32_t>> merges_;
};

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size(); at += out.back().size())
    out.emplace_back(text.substr(at, code_point(text, at).bytes));
  return out;
}

TEST(Bpe, WordsOfEveryLengthFollowTheDefinition) {
  const auto description = described("gpt2");
  const BpeModel model(std::get<BpeDescription>(description.model), /*byte_level=*/true);
  const PlainBpe plain(std::get<BpeDescription>(description.model));
  BpeModel::Scratch scratch;
  std::mt19937_64 draw(3);
  for (std::size_t length = 0; length < 130; ++length) {
    std::string word;
    for (std::size_t i = 0; i < length; ++i) word += "etainosr \xC3\xA9"[draw() % 11];
    Ids ids;
    model.encode(word, scratch, ids);
    EXPECT_EQ(ids, plain.encode(characters(bytes_to_letters(word)))) << length;
    Ids again;
    model.encode(word, scratch, again);
    EXPECT_EQ(ids, again) << "from the words met before";
  }
}

// Nothing cuts these texts into words; cutting where no merge can cross must not show.
TEST(Bpe, WholeTextsWithByteFallbackFollowTheDefinition) {
  const auto description = described("llama2");
  const BpeModel model(std::get<BpeDescription>(description.model), /*byte_level=*/false);
  const PlainBpe plain(std::get<BpeDescription>(description.model));
  BpeModel::Scratch scratch;
  std::mt19937_64 draw(4);
  const auto texts = read_fixture("texts.json").get<std::vector<std::string>>();
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (const std::string& c : characters(round % 2 == 0 ? random_text(draw, 60) : texts[draw() % texts.size()]))
      text += c == " " ? "▁" : c;
    Ids ids;
    model.encode(text, scratch, ids);
    EXPECT_EQ(ids, plain.encode(characters(text))) << formats::python_string(text);
  }
}

BpeTrainingOptions quiet(BpeTrainingOptions options) {
  options.progress.every = std::chrono::milliseconds::max();
  return options;
}

TEST(BpeTraining, LearnsWhatTheReferenceLearns) {
  // What scripts/make-fixtures/tokenizers trains on: the licence by lines, and the sentences four times.
  std::vector<std::string> corpus;
  std::istringstream licence(read_all(std::filesystem::path(TRIREME_FIXTURES) / "../../LICENSE") + "\n");
  for (std::string line; std::getline(licence, line);) corpus.push_back(line + "\n");
  const auto texts = read_fixture("texts.json").get<std::vector<std::string>>();
  WordCounter counter(KnownPattern::kGpt2);
  for (int i = 0; i < 4; ++i) corpus.insert(corpus.end(), texts.begin() + 4, texts.begin() + 15);
  for (const std::string& text : corpus) counter.add(text);
  const auto made = train_bpe(counter.take(), quiet({.vocab_size = 900, .least_count = 1}));
  EXPECT_TRUE(tokenizer_json(made) == read_all(tokenizer_fixtures() / "gpt2.json"));
}

/// Counts every pair anew for every merge.
std::vector<std::pair<std::int32_t, std::int32_t>> plain_merges(std::vector<std::pair<Ids, std::int64_t>> words,
                                                                std::size_t merges, std::int32_t next) {
  std::vector<std::pair<std::int32_t, std::int32_t>> out;
  while (out.size() < merges) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> counts;
    for (const auto& [ids, count] : words)
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) counts[{ids[i], ids[i + 1]}] += count;
    const auto best = std::ranges::max_element(counts, {}, [](const auto& pair) { return pair.second; });
    if (best == counts.end()) break;
    out.push_back(best->first);  // a map: the first of equals has the smallest numbers
    for (auto& [ids, count] : words) {
      Ids kept;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool here = i + 1 < ids.size() && std::pair(ids[i], ids[i + 1]) == best->first;
        kept.push_back(here ? next : ids[i]);
        i += here;
      }
      ids = kept;
    }
    ++next;
  }
  return out;
}

TEST(BpeTraining, CountsAsIfEveryPairWereCountedAnew) {
  std::mt19937_64 draw(5);
  WordCounts words;
  for (int i = 0; i < 200; ++i) {
    std::string word;  // without runs of one letter, whose overlaps the trainer of the reference counts in its own way
    for (std::size_t length = 1 + draw() % 8; word.size() < length;)
      if (const char c = "abcdef"[draw() % 6]; word.empty() || word.back() != c) word += c;
    words[word] = 1 + static_cast<std::int64_t>(draw() % 50);
  }
  const auto made = train_bpe(words, quiet({.vocab_size = 257 + 60, .special_tokens = {"<s>"}}));
  std::map<std::string, std::int32_t> numbers(made.vocabulary().begin(), made.vocabulary().end());
  std::vector<std::pair<Ids, std::int64_t>> plain;
  for (const auto& [word, count] : words) {
    auto& ids = plain.emplace_back(Ids{}, count).first;
    for (const char c : word) ids.push_back(numbers.at(std::string(1, c)));
  }
  const auto expected = plain_merges(plain, 25, 257);
  ASSERT_GE(std::get<BpeDescription>(made.model).merges.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(std::pair(std::get<BpeDescription>(made.model).merges[i].left,
                        std::get<BpeDescription>(made.model).merges[i].right),
              expected[i])
        << i;
}

TEST(BpeTraining, StopsWhenPairsAreTooRare) {
  const auto made = train_bpe({{"abab", 3}, {"xy", 1}}, quiet({.vocab_size = 1000, .least_count = 2}));
  EXPECT_EQ(std::get<BpeDescription>(made.model).merges.size(), 2U);  // ab, abab
  EXPECT_EQ(made.vocabulary().back().first, "abab");
}

TEST(BpeTraining, PutsABeginOfTextToken) {
  auto options =
      quiet({.vocab_size = 300, .pattern = KnownPattern::kLlama3, .special_tokens = {"<a>", "<b>"}, .begin = "<b>"});
  const Tokenizer tokenizer(train_bpe({{" the", 5}}, options), "made");
  EXPECT_EQ(tokenizer.encode(" the").front(), tokenizer.find("<b>"));
  EXPECT_EQ(tokenizer.encode(" the", {.add_special = false}), Ids{*tokenizer.find("Ġthe")});
}

TEST(BpeTraining, RefusesWhatCannotBe) {
  EXPECT_THAT(words_of([] { train_bpe({}, quiet({.vocab_size = 200})); }), ::testing::HasSubstr("ask for 257 or more"));
  EXPECT_THAT(words_of([] {
                train_bpe({}, quiet({.special_tokens = {"<s>", "<s>"}}));
              }),
              ::testing::HasSubstr("twice"));
  EXPECT_THAT(words_of([] { train_bpe({}, quiet({.special_tokens = {"a"}})); }),
              ::testing::HasSubstr("make it longer"));
}

}  // namespace
}  // namespace trireme::data
