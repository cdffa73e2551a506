// Tasks made from a seed.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/random.h"
#include "trireme/science/tasks/tasks.h"

namespace trireme::science {
namespace {

constexpr int kDistractors = 3;

/// The words behind the colon: each is asked for once, and one that nobody asked for is an error.
class GeneratorKeys {
 public:
  explicit GeneratorKeys(std::string_view words) : words_(words) {
    const std::size_t colon = words.find(':');
    std::string_view rest = colon == std::string_view::npos ? std::string_view{} : words.substr(colon + 1);
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      const std::string_view pair = rest.substr(0, comma);
      const std::size_t equals = pair.find('=');
      if (equals == std::string_view::npos)
        throw ConfigError(fmt::format("task \"{}\": \"{}\" is not key=value", words, pair),
                          "write kind:key=value,key=value");
      values_[std::string(pair.substr(0, equals))] = std::string(pair.substr(equals + 1));
      rest = comma < rest.size() ? rest.substr(comma + 1) : std::string_view{};
    }
  }
  std::string text(const std::string& key, const std::string& fallback) {
    known_.insert(key);
    const auto at = values_.find(key);
    return at == values_.end() ? fallback : at->second;
  }
  std::int64_t number(const std::string& key, std::int64_t fallback, std::int64_t least, std::int64_t most) {
    const std::string value = text(key, std::to_string(fallback));
    std::int64_t result = 0;
    std::size_t used = 0;
    try {
      result = std::stoll(value, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used == 0 || used != value.size() || result < least || result > most)
      throw ConfigError(
          fmt::format("task \"{}\": {} = {} is not a number from {} to {}", words_, key, value, least, most),
          fmt::format("give {}={}", key, std::clamp(fallback, least, most)));
    return result;
  }
  void finish() const {
    for (const auto& [key, value] : values_) {
      if (known_.contains(key)) continue;
      std::string all;
      for (const std::string& name : known_) all += (all.empty() ? "" : ", ") + name;
      throw ConfigError(fmt::format("task \"{}\" has no key {}", words_, key), "its keys are " + all);
    }
  }

 private:
  std::string words_;
  std::map<std::string, std::string> values_;
  std::set<std::string> known_;
};

/// FNV-1a: which questions are held out is a property of the question, never of the seed.
bool is_held_out(std::string_view prompt) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : prompt) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  hash ^= hash >> 29;
  return hash % 10 == 0;
}

/// Question number `draw` of a stream.
using Ask = std::function<TaskItem(const Random& random, std::uint64_t draw)>;

std::string padded(std::uint64_t number, std::int64_t digits) { return fmt::format("{:0{}}", number, digits); }

/// Answers that differ from the right one in one or more symbols, all distinct.
std::vector<std::string> changed_answers(const std::string& answer, std::string_view symbols, const Random& random,
                                         std::uint64_t draw) {
  std::set<std::string> found;
  for (std::uint64_t i = 0; found.size() < kDistractors && i < 64; ++i) {
    std::string other = answer;
    const std::uint64_t index = draw * 256 + i * 2;
    other[random.below(other.size(), index)] = symbols[random.below(symbols.size(), index + 1)];
    if (other != answer) found.insert(other);
  }
  return {found.begin(), found.end()};
}

constexpr std::string_view kDigits = "0123456789", kLetters = "abcdefghijklmnopqrstuvwxyz";

/// Numbers have a fixed width, so that an answer has as many tokens everywhere.
Ask ask_addition(GeneratorKeys& keys) {
  const std::int64_t digits = keys.number("digits", 2, 1, 9);
  return [digits](const Random& random, std::uint64_t draw) {
    std::uint64_t range = 1;
    for (std::int64_t i = 0; i < digits; ++i) range *= 10;
    const std::uint64_t a = random.below(range, 2 * draw), b = random.below(range, 2 * draw + 1);
    TaskItem item{padded(a, digits) + "+" + padded(b, digits) + "=", padded(a + b, digits + 1)};
    item.distractors = changed_answers(item.answer, kDigits, random, draw);
    return item;
  };
}

Ask ask_modular(GeneratorKeys& keys) {
  const std::int64_t modulus = keys.number("modulus", 97, 2, 1'000'000);
  return [modulus](const Random& random, std::uint64_t draw) {
    const auto n = static_cast<std::uint64_t>(modulus);
    const auto digits = static_cast<std::int64_t>(std::to_string(n - 1).size());
    const std::uint64_t a = random.below(n, 2 * draw), b = random.below(n, 2 * draw + 1);
    TaskItem item{padded(a, digits) + "+" + padded(b, digits) + " mod " + std::to_string(n) + "=",
                  padded((a + b) % n, digits)};
    item.distractors = changed_answers(item.answer, kDigits, random, draw);
    return item;
  };
}

Ask ask_letters(GeneratorKeys& keys, bool reverse) {
  const std::int64_t length = keys.number("length", 5, 1, 64);
  return [length, reverse](const Random& random, std::uint64_t draw) {
    std::string word;
    for (std::int64_t i = 0; i < length; ++i)
      word += kLetters[random.below(kLetters.size(),
                                    draw * static_cast<std::uint64_t>(length) + static_cast<std::uint64_t>(i))];
    TaskItem item{word + (reverse ? "<" : ">"), reverse ? std::string(word.rbegin(), word.rend()) : word};
    item.distractors = changed_answers(item.answer, kLetters, random, draw);
    return item;
  };
}

/// What cannot be worked out, only known: each of `keys` has one answer, which no seed changes. How many of them a
/// model has room for is a matter of its size.
Ask ask_fact(GeneratorKeys& keys) {
  const auto known = static_cast<std::uint64_t>(keys.number("keys", 1000, 4, 1'000'000));
  const std::int64_t length = keys.number("length", 5, 1, 64);
  std::int64_t letters = 1;
  for (std::uint64_t names = kLetters.size(); names < known; names *= kLetters.size()) ++letters;
  const auto answer = [length, random = Random(0, fmt::format("task/facts/{}/{}", known, length))](std::uint64_t key) {
    std::string word;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(length); ++i)
      word += kLetters[random.below(kLetters.size(), key * 64 + i)];
    return word;
  };
  return [answer, known, letters](const Random& random, std::uint64_t draw) {
    const std::uint64_t key = random.below(known, draw * 8);
    TaskItem item{"", answer(key)};
    std::uint64_t rest = key;
    for (std::int64_t i = 0; i < letters; ++i, rest /= kLetters.size()) item.prompt += kLetters[rest % kLetters.size()];
    item.prompt += ':';
    std::set<std::string> others;  // of other keys: words as likely as the answer to whoever knows no key
    for (std::uint64_t i = 1; others.size() < kDistractors && i < 8; ++i) {
      const std::string other = answer(random.below(known, draw * 8 + i));
      if (other != item.answer) others.insert(other);
    }
    item.distractors.assign(others.begin(), others.end());
    return item;
  };
}

/// A word of a text is left out behind the words before it; the distractors are other words of the text.
Ask ask_cloze(GeneratorKeys& keys) {
  const std::string file = keys.text("file", "");
  const std::int64_t context = keys.number("words", 16, 1, 1000);
  if (file.empty()) throw ConfigError("task cloze needs a text", "give cloze:file=PATH");
  const std::string text = read_text_file(file, std::uint64_t{64} << 20);
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    while (at < text.size() && static_cast<unsigned char>(text[at]) <= ' ') ++at;
    const std::size_t begin = at;
    while (at < text.size() && static_cast<unsigned char>(text[at]) > ' ') ++at;
    if (at > begin) words.push_back(text.substr(begin, at - begin));
  }
  std::vector<std::size_t> asked;  // words that are worth asking for
  for (auto i = static_cast<std::size_t>(context); i < words.size(); ++i) {
    const bool plain =
        std::all_of(words[i].begin(), words[i].end(), [](unsigned char c) { return std::isalpha(c) || c >= 128; });
    if (words[i].size() >= 4 && plain) asked.push_back(i);
  }
  if (asked.size() < 2 * kDistractors)
    throw ConfigError(fmt::format("{} has {} words to ask for", file, asked.size()), "give a longer text");
  return [words = std::move(words), asked = std::move(asked), context](const Random& random, std::uint64_t draw) {
    const std::size_t place = asked[random.below(asked.size(), draw * 64)];
    TaskItem item{"", " " + words[place]};
    for (std::size_t i = place - static_cast<std::size_t>(context); i < place; ++i)
      item.prompt += (item.prompt.empty() ? "" : " ") + words[i];
    std::set<std::string> others;
    for (std::uint64_t i = 1; others.size() < kDistractors && i < 64; ++i) {
      const std::string& other = words[asked[random.below(asked.size(), draw * 64 + i)]];
      if (other != words[place]) others.insert(" " + other);
    }
    item.distractors.assign(others.begin(), others.end());
    return item;
  };
}

struct Generator {
  const char* name;
  std::optional<int> alphabet;
  Ask (*make)(GeneratorKeys&);
};
const Generator kGenerators[] = {
    {"addition", 10, &ask_addition},
    {"modular", 10, &ask_modular},
    {"copy", 26, [](GeneratorKeys& keys) { return ask_letters(keys, false); }},
    {"reverse", 26, [](GeneratorKeys& keys) { return ask_letters(keys, true); }},
    {"facts", 26, &ask_fact},
    {"cloze", std::nullopt, &ask_cloze},
};

}  // namespace

std::optional<std::string> generator_of(std::string_view words) {
  const std::string_view kind = words.substr(0, words.find(':'));
  for (const Generator& generator : kGenerators) {
    if (kind == generator.name) return std::string(kind);
  }
  return std::nullopt;
}

Task generate_task(std::string_view words) {
  const std::string_view kind = words.substr(0, words.find(':'));
  const auto* const found =
      std::find_if(std::begin(kGenerators), std::end(kGenerators), [&](const auto& one) { return kind == one.name; });
  if (found == std::end(kGenerators))
    throw ConfigError(fmt::format("no generated task is called {}", kind),
                      "take addition, modular, copy, reverse, facts or cloze, or name a file");
  GeneratorKeys keys(words);
  const std::int64_t count = keys.number("count", 200, 1, 10'000'000);
  const auto seed = static_cast<std::uint64_t>(keys.number("seed", 0, 0, std::int64_t{1} << 40));
  const std::string split = keys.text("split", "all");
  if (split != "all" && split != "train" && split != "test")
    throw ConfigError(fmt::format("task \"{}\": split = {}", words, split), "give split=all, train or test");
  if (kind == "facts" && split != "all")
    throw ConfigError(fmt::format("task \"{}\": split = {}, but a fact that is held out cannot be known", words, split),
                      "leave split out: facts are asked as they were trained");
  const Ask ask = found->make(keys);
  keys.finish();
  Task task{.name = std::string(words), .items = {}, .alphabet = found->alphabet};
  const Random random(seed, fmt::format("task/{}", kind));
  const std::uint64_t most = 100 * static_cast<std::uint64_t>(count) + 1000;
  for (std::uint64_t draw = 0; task.items.size() < static_cast<std::size_t>(count); ++draw) {
    if (draw == most)
      throw ConfigError(fmt::format("task \"{}\": {} questions of split {} were not found", words, count, split),
                        "ask for fewer, or for longer ones");
    TaskItem item = ask(random, draw);
    if (split == "all" || is_held_out(item.prompt) == (split == "test")) task.items.push_back(std::move(item));
  }
  return task;
}

}  // namespace trireme::science
