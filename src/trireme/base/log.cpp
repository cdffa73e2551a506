#include "trireme/base/log.h"

#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/base/env.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr Named<LogLevel> kLevels[] = {
    {"trace", LogLevel::kTrace}, {"debug", LogLevel::kDebug}, {"info", LogLevel::kInfo},
    {"warn", LogLevel::kWarn},   {"error", LogLevel::kError}, {"off", LogLevel::kOff},
};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

struct Speaker {
  int rank = 0, ranks = 1;
};
std::atomic<int> process_rank = 0, process_ranks = 1;
thread_local Speaker thread_speaker{.rank = -1, .ranks = 0};  // no ranks: the process speaks

std::atomic<LogLevel> level_now = LogLevel::kInfo;
std::atomic<bool> line_is_open = false;

/// The function given to divert_log, as spdlog wants it.
class DivertedSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit DivertedSink(std::function<void(std::string_view)> take) : take_(std::move(take)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    take_(fmt::format("{} {}", name_in<LogLevel>(kLevels, static_cast<LogLevel>(message.level)),
                      std::string_view(message.payload.data(), message.payload.size())));
  }
  void flush_() override {}
  std::function<void(std::string_view)> take_;
};

std::shared_ptr<spdlog::logger> stderr_logger() {
  const bool plain = env("NO_COLOR").has_value();
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(plain ? spdlog::color_mode::never
                                                                          : spdlog::color_mode::automatic);
  auto logger = std::make_shared<spdlog::logger>("trireme", std::move(sink));
  logger->set_pattern("%H:%M:%S %^%-5l%$ %v");
  logger->set_level(spdlog::level::trace);  // level_now decides, before a text is even formatted
  return logger;
}

/// The writer in use; shared by whoever is writing a line while it is exchanged for another.
class Writer {
 public:
  std::shared_ptr<spdlog::logger> get() {
    const std::lock_guard lock(mutex_);
    if (!logger_) logger_ = stderr_logger();
    return logger_;
  }
  void set(std::shared_ptr<spdlog::logger> logger) {
    const std::lock_guard lock(mutex_);
    logger_ = std::move(logger);
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<spdlog::logger> logger_;
};

/// Descriptors that lines are copied to.
class Copies {
 public:
  void add(int descriptor) {
    const std::lock_guard lock(mutex_);
    descriptors_.push_back(descriptor);
    any_.store(true, std::memory_order_relaxed);
  }
  void remove(int descriptor) {
    const std::lock_guard lock(mutex_);
    std::erase(descriptors_, descriptor);
    any_.store(!descriptors_.empty(), std::memory_order_relaxed);
  }
  void write(LogLevel level, std::string_view text) {
    if (!any_.load(std::memory_order_relaxed)) return;
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char stamp[32];
    std::strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &local);
    const std::string line =
        fmt::format("{} {:<5} {}{}\n", stamp, name_in<LogLevel>(kLevels, level), rank_prefix(), text);
    const std::lock_guard lock(mutex_);
    for (const int descriptor : descriptors_) {
      [[maybe_unused]] const auto ignored = ::write(descriptor, line.data(), line.size());
    }
  }

 private:
  std::mutex mutex_;
  std::vector<int> descriptors_;
  std::atomic<bool> any_ = false;
};

Copies& copies() {
  static Copies& instance = *new Copies;  // never destroyed, as below
  return instance;
}

// Never destroyed: threads may still speak while the process ends.
Writer& writer() {
  static Writer& instance = *new Writer;
  return instance;
}

}  // namespace

std::span<const Named<LogLevel>> enum_names(std::type_identity<LogLevel>) { return kLevels; }

LogLevel parse_log_level(std::string_view text) {
  std::vector<std::string> names;
  for (const auto& [name, level] : kLevels) {
    if (name == text) return level;
    names.emplace_back(name);
  }
  throw ConfigError(fmt::format("\"{}\" is not a log level{}", text, did_you_mean(text, names)),
                    fmt::format("the levels are {}", listed(names)));
}

void set_log_level(LogLevel level) { level_now.store(level, std::memory_order_relaxed); }
LogLevel log_level() { return level_now.load(std::memory_order_relaxed); }

void set_process_rank(int rank, int ranks) {
  process_rank = rank;
  process_ranks = ranks;
}

ThreadRank::ThreadRank(int rank, int ranks) : rank_before_(thread_speaker.rank), ranks_before_(thread_speaker.ranks) {
  thread_speaker = {.rank = rank, .ranks = ranks};
}
ThreadRank::~ThreadRank() { thread_speaker = {.rank = rank_before_, .ranks = ranks_before_}; }

std::string rank_prefix() {
  const Speaker speaker =
      thread_speaker.ranks > 0 ? thread_speaker : Speaker{.rank = process_rank, .ranks = process_ranks};
  return speaker.ranks > 1 ? fmt::format("[rank {}] ", speaker.rank) : std::string();
}

void divert_log(std::function<void(std::string_view)> take) {
  if (!take) return writer().set(nullptr);
  auto logger = std::make_shared<spdlog::logger>("diverted", std::make_shared<DivertedSink>(std::move(take)));
  logger->set_level(spdlog::level::trace);
  writer().set(std::move(logger));
}

LogCopy::LogCopy(const std::string& path)
    : descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) throw IoError(fmt::format("{} cannot be opened: {}", path, std::strerror(errno)));
  copies().add(descriptor_);
}

LogCopy::~LogCopy() {
  copies().remove(descriptor_);
  ::close(descriptor_);
}

void note_open_line(bool open) { line_is_open.store(open, std::memory_order_relaxed); }

bool detail::log_enabled(LogLevel level) { return level >= log_level() && level != LogLevel::kOff; }

void detail::log_text(LogLevel level, std::string_view text) {
  if (line_is_open.exchange(false, std::memory_order_relaxed)) {
    constexpr std::string_view kWipe = "\r\x1b[K";
    [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, kWipe.data(), kWipe.size());
  }
  writer().get()->log(to_spdlog(level), "{}{}", rank_prefix(), text);
  copies().write(level, text);
}

}  // namespace trireme
