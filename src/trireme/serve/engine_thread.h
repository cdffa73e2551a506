// serve/engine_thread.h -- an engine on a thread of its own, and many threads that ask it for continuations.
//
//   EngineThread engine(std::move(made), {.max_requests = 256}, metrics);
//   const auto answer = engine.submit(requests);         // nothing: as many requests are there as may be
//   while (const auto token = answer->wait(...)) ...     // of all of them, as they come
//   answer->cancel();                                    // its blocks are free before the next step
//
// Depends on: base, engine.h, http/metrics.h.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/http/metrics.h"
#include "trireme/serve/engine.h"
#include "trireme/serve/followed_engine.h"

namespace trireme::serve {

/// A token of one of an answer's sequences.
struct AnswerToken {
  std::size_t sequence = 0;  ///< its place among those that were submitted
  GeneratedToken token = {};
};

class EngineThread;

/// The sequences of one HTTP request, for the one thread that waits for them.
class PendingAnswer {
 public:
  /// The next token; nothing where `wake` was called or all have ended. Rethrows what broke the engine.
  std::optional<AnswerToken> wait();
  /// Makes wait() return, from any thread.
  void wake();
  bool ended() const;
  /// One sequence needs no more tokens; or all of them.
  void cancel(std::size_t sequence);
  void cancel();
  ~PendingAnswer();

 private:
  friend class EngineThread;
  PendingAnswer(EngineThread& engine, RequestId first, std::size_t count)
      : engine_(engine), first_(first), running_(count, true) {}

  EngineThread& engine_;
  RequestId first_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<AnswerToken> tokens_;
  std::vector<bool> running_;  // by sequence
  bool woken_ = false;
  std::exception_ptr broken_;
};

struct EngineThreadOptions {
  std::size_t max_requests = 256;            ///< sequences that run or wait
  std::function<void()> on_start = nullptr;  ///< called by the thread
  /// Called by the thread before each step, and now and then while there is none: for engines that follow this one.
  std::function<void(const EngineOrders& orders)> tell = nullptr;
};

class EngineThread {
 public:
  EngineThread(std::unique_ptr<InferenceEngine> engine, EngineThreadOptions options, http::Metrics& metrics);
  /// Ends what runs.
  ~EngineThread();

  /// Their ids and callbacks are set here. Nothing where so many do not fit any more. An HttpError 400 where one could
  /// never be served: then none is.
  std::shared_ptr<PendingAnswer> submit(std::vector<EngineRequest> requests);

  struct State {
    std::int64_t running = 0, waiting = 0;
    std::vector<BlockPool::Count> blocks = {};  ///< by group
    Scheduler::Totals totals = {};
    /// Sequences that wait for room, from when they were submitted or preempted; that hold blocks. They go from one to
    /// the other at the ends of steps.
    QueueReading waiting_queue = {}, running_queue = {};
  };
  State state() const;
  /// What broke it; empty: nothing. A broken engine refuses requests.
  std::string failure() const;

 private:
  friend class PendingAnswer;
  void run();
  void take_step();
  void cancel_later(RequestId id);
  void tell(const std::shared_ptr<PendingAnswer>& answer, AnswerToken token);
  void collect(http::Samples& samples) const;
  void meter_sequences();

  std::unique_ptr<InferenceEngine> engine_;
  EngineThreadOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable posted_;
  struct Posted {
    EngineRequest request;
    std::shared_ptr<PendingAnswer> answer;
  };
  std::vector<Posted> posted_requests_;
  std::vector<RequestId> posted_cancels_;
  std::map<RequestId, std::shared_ptr<PendingAnswer>> answers_;  // of the thread alone
  /// Where a sequence is, and since when.
  struct Stay {
    bool running = false;
    QueueMeter::Nanoseconds since = 0;
  };
  std::map<RequestId, Stay> stays_;  // with the meters, under mutex_
  QueueMeter waiting_, running_;
  std::size_t open_ = 0;  // requests that were taken and have not ended
  RequestId next_id_ = 1;
  bool closing_ = false;
  State state_;
  std::exception_ptr broken_;
  http::Histogram& first_token_seconds_;
  http::Histogram& next_token_seconds_;
  http::Histogram& step_seconds_;
  http::Counter& generated_;
  std::thread thread_;
};

}  // namespace trireme::serve
