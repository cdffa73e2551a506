#include "trireme/serve/engine_thread.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/http/message.h"

namespace trireme::serve {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kFollowersHear{500};  // from rank 0, at the least

double seconds_from(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

std::optional<AnswerToken> PendingAnswer::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return !tokens_.empty() || woken_ || broken_ || std::ranges::find(running_, true) == running_.end();
  });
  if (broken_) std::rethrow_exception(broken_);
  std::optional<AnswerToken> token;  // the one thing that is returned: GCC 12 warns of moves that are then not made
  if (tokens_.empty()) {
    woken_ = false;
  } else {
    token.emplace(std::move(tokens_.front()));
    tokens_.pop_front();
  }
  return token;
}

void PendingAnswer::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

bool PendingAnswer::ended() const {
  const std::lock_guard lock(mutex_);
  return tokens_.empty() && std::ranges::find(running_, true) == running_.end();
}

void PendingAnswer::cancel(std::size_t sequence) {
  {
    const std::lock_guard lock(mutex_);
    if (!running_.at(sequence)) return;
    running_[sequence] = false;
    std::erase_if(tokens_, [&](const AnswerToken& token) { return token.sequence == sequence; });
  }
  engine_.cancel_later(first_ + sequence);
}

void PendingAnswer::cancel() {
  for (std::size_t i = 0; i < running_.size(); ++i) cancel(i);
}

PendingAnswer::~PendingAnswer() = default;

EngineThread::EngineThread(std::unique_ptr<InferenceEngine> engine, EngineThreadOptions options, http::Metrics& metrics)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      first_token_seconds_(metrics.histogram("trireme_serve_first_token_seconds",
                                             "Time from a request to its first token", http::time_bounds())),
      next_token_seconds_(metrics.histogram("trireme_serve_next_token_seconds", "Time between two tokens of a sequence",
                                            http::time_bounds())),
      step_seconds_(
          metrics.histogram("trireme_serve_step_seconds", "Time of a step of the model", http::time_bounds())),
      generated_(metrics.counter("trireme_serve_generated_tokens_total", "Tokens generated")) {
  for (std::size_t group = 0; group < engine_->scheduler().pool().groups(); ++group) {
    state_.blocks.push_back(engine_->scheduler().pool().count(group));
  }
  metrics.add_collector([this](http::Samples& samples) { collect(samples); });
  thread_ = std::thread([this] { run(); });
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    posted_.notify_all();
  }
  thread_.join();
}

void EngineThread::collect(http::Samples& samples) const {
  const State now = state();
  const auto gauge = [&](const char* name, const char* help, std::int64_t value) {
    samples.gauge(name, help, {}, static_cast<double>(value));
  };
  const auto counter = [&](const char* name, const char* help, std::int64_t value) {
    samples.counter(name, help, {}, static_cast<double>(value));
  };
  gauge("trireme_serve_running", "Sequences that hold blocks of the KV cache", now.running);
  gauge("trireme_serve_waiting", "Sequences that wait for room in the KV cache", now.waiting);
  counter("trireme_serve_steps_total", "Steps of the model", now.totals.steps);
  counter("trireme_serve_prefill_tokens_total", "Tokens of prompts that were computed", now.totals.prefill_tokens);
  counter("trireme_serve_cached_tokens_total", "Tokens of prompts that the prefix cache had", now.totals.cached_tokens);
  counter("trireme_serve_preemptions_total", "Sequences that gave up their blocks", now.totals.preemptions);
  counter("trireme_serve_draft_tokens_total", "Tokens proposed by speculation", now.totals.drafts);
  counter("trireme_serve_accepted_draft_tokens_total", "Of these, those that were right", now.totals.accepted_drafts);
  samples.queue("serve_waiting", now.waiting_queue);
  samples.queue("serve_running", now.running_queue);
  for (std::size_t group = 0; group < now.blocks.size(); ++group) {
    const BlockPool::Count& of = now.blocks[group];
    for (const auto& [state, count] :
         {std::pair{"free", of.free}, std::pair{"held", of.held}, std::pair{"cached", of.cached}}) {
      samples.gauge("trireme_serve_kv_blocks", "Blocks of the KV cache",
                    {{"group", std::to_string(group)}, {"state", state}}, static_cast<double>(count));
    }
  }
}

std::shared_ptr<PendingAnswer> EngineThread::submit(std::vector<EngineRequest> requests) {
  const std::lock_guard lock(mutex_);
  if (broken_) throw http::HttpError(500, "the model has failed; the server's log says how");
  if (open_ + requests.size() > options_.max_requests || closing_) return nullptr;
  const Scheduler& scheduler = engine_->scheduler();
  for (const EngineRequest& request : requests) {  // options alone are read: safe beside the engine's thread
    if (const auto why =
            scheduler.why_never(static_cast<std::int64_t>(request.prompt.size()), request.max_new_tokens)) {
      throw http::HttpError(400, *why, {.type = "invalid_request_error", .code = "context_length_exceeded"});
    }
  }
  const std::shared_ptr<PendingAnswer> answer(new PendingAnswer(*this, next_id_, requests.size()));
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EngineRequest& request = requests[i];
    request.id = next_id_++;
    request.on_token = [this, answer = std::weak_ptr(answer), i, begin,
                        last = begin](const GeneratedToken& token) mutable {
      (last == begin ? first_token_seconds_ : next_token_seconds_).observe(seconds_from(last));
      last = Clock::now();
      generated_.add();
      if (const auto to = answer.lock()) tell(to, {i, token});
    };
    const QueueMeter::Nanoseconds now = QueueMeter::now();
    waiting_.arrive(now);
    stays_[request.id] = {.running = false, .since = now};
    posted_requests_.push_back({std::move(request), answer});
    ++open_;
  }
  posted_.notify_all();
  return answer;
}

void EngineThread::tell(const std::shared_ptr<PendingAnswer>& answer, AnswerToken token) {
  const std::lock_guard lock(answer->mutex_);
  const std::size_t sequence = token.sequence;
  if (!answer->running_[sequence]) return;  // cancelled meanwhile
  if (token.token.finish) answer->running_[sequence] = false;
  answer->tokens_.push_back(std::move(token));
  answer->changed_.notify_all();
}

void EngineThread::cancel_later(RequestId id) {
  const std::lock_guard lock(mutex_);
  posted_cancels_.push_back(id);
  posted_.notify_all();
}

EngineThread::State EngineThread::state() const {
  const std::lock_guard lock(mutex_);
  State state = state_;
  state.waiting_queue = waiting_.read();
  state.running_queue = running_.read();
  return state;
}

/// Sequences go from one queue to the other at the ends of steps. With the lock.
void EngineThread::meter_sequences() {
  const QueueMeter::Nanoseconds now = QueueMeter::now();
  const Scheduler& scheduler = engine_->scheduler();
  const RequestId not_added = posted_requests_.empty() ? next_id_ : posted_requests_.front().request.id;
  for (auto entry = stays_.begin(); entry != stays_.end() && entry->first < not_added;) {
    const RequestId id = entry->first;
    Stay& stay = entry->second;
    const bool gone = !scheduler.contains(id), running = !gone && scheduler.is_running(id);
    if (gone || running != stay.running) (stay.running ? running_ : waiting_).depart(stay.since, now);
    if (gone) {
      entry = stays_.erase(entry);
      continue;
    }
    if (running != stay.running) {
      (running ? running_ : waiting_).arrive(now);
      stay = {.running = running, .since = now};
    }
    ++entry;
  }
}

std::string EngineThread::failure() const {
  const std::lock_guard lock(mutex_);
  if (!broken_) return {};
  try {
    std::rethrow_exception(broken_);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something that is no exception";
  }
}

void EngineThread::take_step() {
  const auto begin = Clock::now();
  engine_->step();
  step_seconds_.observe(seconds_from(begin));
}

void EngineThread::run() {
  if (options_.on_start) options_.on_start();
  try {
    while (true) {
      std::vector<Posted> requests;
      std::vector<RequestId> cancels;
      {
        std::unique_lock lock(mutex_);
        const auto asked = [&] {
          return closing_ || !engine_->idle() || !posted_requests_.empty() || !posted_cancels_.empty();
        };
        if (options_.tell) {
          posted_.wait_for(lock, kFollowersHear, asked);
        } else {
          posted_.wait(lock, asked);
        }
        if (closing_) break;
        requests = std::exchange(posted_requests_, {});
        cancels = std::exchange(posted_cancels_, {});
      }
      if (options_.tell) {
        EngineOrders orders{.cancels = cancels};
        for (const Posted& posted : requests) orders.requests.push_back(posted.request);
        options_.tell(orders);
      }
      for (Posted& posted : requests) {
        const RequestId id = posted.request.id;
        const auto why = engine_->add(std::move(posted.request));
        TRIREME_CHECK(!why, "a request was taken, but {}", *why);
        answers_[id] = std::move(posted.answer);
      }
      for (const RequestId id : cancels) engine_->cancel(id);
      if (!engine_->idle()) take_step();
      std::erase_if(answers_, [&](const auto& entry) { return !engine_->scheduler().contains(entry.first); });
      const Scheduler& scheduler = engine_->scheduler();
      const std::lock_guard lock(mutex_);
      meter_sequences();
      open_ = answers_.size() + posted_requests_.size();
      state_.running = scheduler.running();
      state_.waiting = scheduler.waiting();
      state_.totals = scheduler.totals();
      for (std::size_t group = 0; group < state_.blocks.size(); ++group) {
        state_.blocks[group] = scheduler.pool().count(group);
      }
    }
    if (options_.tell) options_.tell({.end = true});
  } catch (const std::exception& error) {
    log_error("serve: a step failed: {}", error.what());
    const std::lock_guard lock(mutex_);
    broken_ = std::current_exception();
    for (const Posted& posted : posted_requests_) answers_[posted.request.id] = posted.answer;
    for (const auto& [id, answer] : answers_) {
      const std::lock_guard of_answer(answer->mutex_);
      answer->broken_ = broken_;
      answer->changed_.notify_all();
    }
  }
}

}  // namespace trireme::serve
