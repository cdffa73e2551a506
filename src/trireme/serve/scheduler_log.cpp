#include "trireme/serve/scheduler_log.h"

#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <charconv>
#include <istream>
#include <memory>
#include <ostream>

#include "trireme/base/error.h"

namespace trireme::serve {
namespace {

/// A line, word by word. A log is written by ourselves, yet may have been cut anywhere.
class LogLine {
 public:
  LogLine(std::string_view text, std::int64_t number) : text_(text), number_(number) {}

  std::string_view word() {
    const std::size_t begin = std::min(text_.find_first_not_of(' ', at_), text_.size());
    const std::size_t end = std::min(text_.find(' ', begin), text_.size());
    at_ = end;
    return text_.substr(begin, end - begin);
  }
  void expect(std::string_view word_to_come) {
    if (const auto found = word(); found != word_to_come) fail(found, word_to_come);
  }
  std::string_view rest() {
    const std::size_t begin = std::min(text_.find_first_not_of(' ', at_), text_.size());
    at_ = text_.size();
    return text_.substr(begin);
  }
  template <typename T>
  T number(std::string_view digits) {
    T value{};
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || stop != digits.data() + digits.size()) fail(digits, "a number");
    return value;
  }
  template <typename T>
  T number() {
    return number<T>(word());
  }
  std::vector<std::int64_t> list(std::string_view digits) {
    std::vector<std::int64_t> out;
    while (!digits.empty()) {
      const std::size_t comma = std::min(digits.find(','), digits.size());
      out.push_back(number<std::int64_t>(digits.substr(0, comma)));
      digits.remove_prefix(std::min(comma + 1, digits.size()));
    }
    return out;
  }
  [[noreturn]] void fail(std::string_view found, std::string_view wanted) const {
    throw ConfigError(fmt::format("line {} of the scheduler's log has \"{}\" in place of {}", number_, found, wanted));
  }

 private:
  std::string_view text_;
  std::int64_t number_;
  std::size_t at_ = 0;
};

/// Bytes of a salt as hexadecimal digits, behind an x so that an empty one is a word too.
std::string salt_text(std::string_view salt) {
  std::string out = "x";
  for (const char c : salt) fmt::format_to(std::back_inserter(out), "{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string read_salt(LogLine& line) {
  const std::string_view text = line.word();
  if (!text.starts_with('x') || text.size() % 2 == 0) line.fail(text, "a salt");
  std::string salt;
  for (std::size_t i = 1; i < text.size(); i += 2) {
    int value = 0;
    const auto [stop, error] = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (error != std::errc() || stop != text.data() + i + 2) line.fail(text, "a salt");
    salt += static_cast<char>(value);
  }
  return salt;
}

SchedulerOptions read_options(LogLine& line) {
  SchedulerOptions options;
  line.expect("tokens");
  options.max_batch_tokens = line.number<std::int64_t>();
  line.expect("sequences");
  options.max_sequences = line.number<std::int64_t>();
  line.expect("chunk");
  options.prefill_chunk = line.number<std::int64_t>();
  line.expect("prefix");
  options.prefix_cache = line.number<int>() != 0;
  line.expect("hash");
  options.hash_bits = line.number<int>();
  line.expect("offload");
  options.offload_blocks = line.number<std::int64_t>();
  line.expect("groups");
  for (auto word = line.word(); !word.empty(); word = line.word()) {
    const std::size_t times = std::min(word.find('x'), word.size() - 1);
    options.groups.push_back({.window = line.number<std::int64_t>(word.substr(0, times)),
                              .num_blocks = line.number<std::int64_t>(word.substr(times + 1))});
  }
  return options;
}

/// "7=12,5 8=3.": tokens of each sequence of the plan, a stop where it ends there.
std::vector<StepResult> read_results(LogLine& line, const StepPlan& plan) {
  std::vector<StepResult> results(plan.sequences.size());
  for (auto word = line.word(); !word.empty(); word = line.word()) {
    const std::size_t equals = std::min(word.find('='), word.size());
    const auto id = line.number<RequestId>(word.substr(0, equals));
    std::string_view tokens = word.substr(std::min(equals + 1, word.size()));
    const auto planned = std::ranges::find(plan.sequences, id, &PlannedSequence::id);
    if (planned == plan.sequences.end()) line.fail(word, "a sequence of the plan");
    StepResult& result = results[static_cast<std::size_t>(planned - plan.sequences.begin())];
    result.ends = tokens.ends_with('.');
    if (result.ends) tokens.remove_suffix(1);
    result.tokens = line.list(tokens);
  }
  return results;
}

}  // namespace

LoggedScheduler::LoggedScheduler(SchedulerOptions options, std::ostream* log)
    : scheduler_(std::move(options)), log_(log) {
  if (!log_) return;
  const SchedulerOptions& of = scheduler_.options();
  fmt::print(*log_, "options tokens {} sequences {} chunk {} prefix {} hash {} offload {} groups", of.max_batch_tokens,
             of.max_sequences, of.prefill_chunk, of.prefix_cache ? 1 : 0, of.hash_bits, of.offload_blocks);
  for (const nn::KvCacheGroup& group : of.groups) fmt::print(*log_, " {}x{}", group.window, group.num_blocks);
  fmt::print(*log_, "\n");
}

std::optional<std::string> LoggedScheduler::add(SequenceRequest request) {
  if (log_) {
    fmt::print(*log_, "add {} max {} salt {} prompt {}\n", request.id, request.max_new_tokens, salt_text(request.salt),
               fmt::join(request.prompt, ","));
  }
  return scheduler_.add(std::move(request));
}

bool LoggedScheduler::cancel(RequestId id) {
  if (log_) fmt::print(*log_, "cancel {}\n", id);
  return scheduler_.cancel(id);
}

void LoggedScheduler::propose(RequestId id, std::vector<std::int64_t> drafts) {
  if (log_) fmt::print(*log_, "propose {} {}\n", id, fmt::join(drafts, ","));
  scheduler_.propose(id, std::move(drafts));
}

StepPlan LoggedScheduler::plan() {
  StepPlan plan = scheduler_.plan();
  if (log_) fmt::print(*log_, "plan {}\n", to_text(plan));
  return plan;
}

std::vector<RequestId> LoggedScheduler::complete(const StepPlan& plan, std::span<const StepResult> results) {
  if (log_) {
    fmt::print(*log_, "done");
    for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
      if (!plan.sequences[i].samples) continue;
      fmt::print(*log_, " {}={}{}", plan.sequences[i].id, fmt::join(results[i].tokens, ","),
                 results[i].ends ? "." : "");
    }
    fmt::print(*log_, "\n");
  }
  return scheduler_.complete(plan, results);
}

Replayed replay(std::istream& log) {
  Replayed replayed;
  std::unique_ptr<Scheduler> scheduler;
  StepPlan plan;
  for (std::string text; std::getline(log, text);) {
    LogLine line(text, ++replayed.lines);
    const std::string_view what = line.word();
    if ((what == "options") == (scheduler != nullptr)) line.fail(what, scheduler ? "an event" : "the options");
    if (what == "options") {
      scheduler = std::make_unique<Scheduler>(read_options(line));
    } else if (what == "add") {
      SequenceRequest request{.id = line.number<RequestId>()};
      line.expect("max");
      request.max_new_tokens = line.number<std::int64_t>();
      line.expect("salt");
      request.salt = read_salt(line);
      line.expect("prompt");
      request.prompt = line.list(line.word());
      (void)scheduler->add(std::move(request));  // whether it was refused shows in the plans
    } else if (what == "cancel") {
      scheduler->cancel(line.number<RequestId>());
    } else if (what == "propose") {
      const auto id = line.number<RequestId>();
      scheduler->propose(id, line.list(line.word()));
    } else if (what == "plan") {
      plan = scheduler->plan();
      ++replayed.plans;
      const std::string_view expected = line.rest();
      TRIREME_CHECK(to_text(plan) == expected, "line {} of the scheduler's log has the plan \"{}\", it is now \"{}\"",
                    replayed.lines, expected, to_text(plan));
    } else if (what == "done") {
      const auto results = read_results(line, plan);
      scheduler->complete(plan, results);
    } else {
      line.fail(what, "an event");
    }
  }
  return replayed;
}

}  // namespace trireme::serve
