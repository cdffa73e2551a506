#include "trireme/spec/faults.h"

#include <fmt/format.h>

#include <charconv>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"

namespace trireme::spec {
namespace {

constexpr const char* kForms =
    "say: kill rank R at step S [while copying|writing|publishing, or after written|published] / hang rank R at step S "
    "/ stall rank R at step S for 2s / slow rank R by 2.5 from step S [to step T] / flip a bit of TENSOR on rank R at "
    "step S / flip a bit in the checkpoint of step S / disk full at step S [on rank R] / clock of rank R jumps [back] "
    "by 1h "
    "at step S";

constexpr Named<Fault::Moment> kMoments[] = {{"copying", Fault::Moment::kCopying},
                                             {"writing", Fault::Moment::kWriting},
                                             {"written", Fault::Moment::kWritten},
                                             {"publishing", Fault::Moment::kPublishing},
                                             {"published", Fault::Moment::kPublished}};

constexpr std::int64_t kForEver = std::int64_t{1} << 62;

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (const std::string& word : split(text, ' ')) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

/// What stands at the stars of the pattern; nothing when the words are others.
std::optional<std::vector<std::string>> match(const std::vector<std::string>& words, std::string_view pattern) {
  const std::vector<std::string> wanted = words_of(pattern);
  if (words.size() != wanted.size()) return std::nullopt;
  std::vector<std::string> found;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (wanted[i] == "*") {
      found.push_back(words[i]);
    } else if (wanted[i] != words[i]) {
      return std::nullopt;
    }
  }
  return found;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  template <typename Number>
  Number number(const std::string& word) const {
    Number value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || end != word.data() + word.size() || value < Number{}) {
      refuse(fmt::format("\"{}\" is not a number", word));
    }
    return value;
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw ConfigError(fmt::format("--inject \"{}\": {}", text_, why), kForms);
  }

 private:
  std::string_view text_;
};

}  // namespace

Fault parse_fault(std::string_view text) {
  using Kind = Fault::Kind;
  const Reader read(text);
  const std::vector<std::string> words = words_of(text);
  Fault fault{.text = std::string(text)};
  const auto place = [&](const std::string& rank, const std::string& step) {
    fault.rank = read.number<int>(rank);
    fault.step = fault.last_step = read.number<std::int64_t>(step);
  };
  if (const auto found = match(words, "kill rank * at step *")) {
    place((*found)[0], (*found)[1]);
    return fault;
  }
  auto when = match(words, "kill rank * at step * while *");
  if (!when) when = match(words, "kill rank * at step * after *");
  if (when) {
    place((*when)[0], (*when)[1]);
    for (const auto& [name, moment] : kMoments) {
      if (name == (*when)[2]) fault.moment = moment;
    }
    fault.last_step = kForEver;
    if (fault.moment == Fault::Moment::kStep) read.refuse(fmt::format("\"{}\" is no part of saving", (*when)[2]));
    return fault;
  }
  if (const auto found = match(words, "hang rank * at step *")) {
    fault.kind = Kind::kHang;
    place((*found)[0], (*found)[1]);
  } else if (const auto stall = match(words, "stall rank * at step * for *")) {
    fault.kind = Kind::kStall;
    place((*stall)[0], (*stall)[1]);
    fault.duration = parse_duration((*stall)[2]);
  } else if (const auto slow = match(words, "slow rank * by * from step *")) {
    fault.kind = Kind::kSlow;
    place((*slow)[0], (*slow)[2]);
    fault.factor = read.number<double>((*slow)[1]);
    fault.last_step = kForEver;
  } else if (const auto until = match(words, "slow rank * by * from step * to step *")) {
    fault.kind = Kind::kSlow;
    place((*until)[0], (*until)[2]);
    fault.factor = read.number<double>((*until)[1]);
    fault.last_step = read.number<std::int64_t>((*until)[3]);
  } else if (const auto flip = match(words, "flip a bit of * on rank * at step *")) {
    fault.kind = Kind::kFlipState;
    fault.tensor = (*flip)[0];
    place((*flip)[1], (*flip)[2]);
  } else if (const auto file = match(words, "flip a bit in the checkpoint of step *")) {
    fault.kind = Kind::kFlipFile;
    place("0", (*file)[0]);
  } else if (const auto full = match(words, "disk full at step *")) {
    fault.kind = Kind::kDiskFull;
    place("0", (*full)[0]);
  } else if (const auto where = match(words, "disk full at step * on rank *")) {
    fault.kind = Kind::kDiskFull;
    place((*where)[1], (*where)[0]);
  } else if (const auto clock = match(words, "clock of rank * jumps by * at step *")) {
    fault.kind = Kind::kClock;
    place((*clock)[0], (*clock)[2]);
    fault.duration = parse_duration((*clock)[1]);
  } else if (const auto back = match(words, "clock of rank * jumps back by * at step *")) {
    fault.kind = Kind::kClock;
    place((*back)[0], (*back)[2]);
    fault.duration = -parse_duration((*back)[1]);
  } else {
    read.refuse("is no fault that is known");
  }
  if (fault.kind == Kind::kFlipFile || fault.kind == Kind::kDiskFull) fault.last_step = kForEver;
  if (fault.kind == Kind::kSlow && fault.factor < 1) read.refuse("a rank cannot be made faster");
  return fault;
}

std::vector<Fault> parse_faults(std::span<const std::string> texts) {
  std::vector<Fault> faults;
  for (const std::string& text : texts) faults.push_back(parse_fault(text));
  return faults;
}

}  // namespace trireme::spec
