// serve/server.h -- the OpenAI-compatible API over an engine: /v1/models, /v1/completions, /v1/chat/completions,
// /tokenize, a chat page, and what http/server.h brings: /health, /ready, /metrics.
//
//   InferenceServer server(std::move(engine), std::move(text), {.port = 8000});
//   server.start();
//   server.drain(timeout);
//
// A request is read, checked and queued before the first byte of its answer. A client that goes away is cancelled
// before the next step.
// Depends on: base, data/tokenizer, http, api/, chat/, engine_thread.h.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "trireme/http/server.h"
#include "trireme/serve/api/request.h"
#include "trireme/serve/api/response.h"
#include "trireme/serve/engine_thread.h"
#include "trireme/serve/model_text.h"

namespace trireme::serve {

struct InferenceServerOptions {
  http::ServerOptions http;
  std::string model_name;          ///< as clients ask for it
  std::string fingerprint;         ///< of model, program and settings
  std::int64_t max_len = 0;        ///< of prompt and answer
  std::size_t max_requests = 256;  ///< sequences that run or wait; more get 429
  std::uint64_t seed = 0;          ///< of requests that bring none, together with their number
  std::function<void()> on_engine_start = nullptr;
  std::function<void(const EngineOrders& orders)> tell = nullptr;  ///< EngineThreadOptions
};

class InferenceServer {
 public:
  InferenceServer(std::unique_ptr<InferenceEngine> engine, ModelText text, InferenceServerOptions options);
  ~InferenceServer();

  void start() { http_.start(); }
  bool drain(std::chrono::milliseconds timeout) { return http_.drain(timeout); }
  std::string url() const { return http_.url(); }
  int port() const { return http_.port(); }
  const EngineThread& engine() const { return engine_; }

 private:
  struct Job;
  http::Response models(const http::Request& request) const;
  http::Response tokenize(const http::Request& request) const;
  http::Response complete(const http::Request& request, bool chat);
  Job make_job(const http::Request& request, bool chat);
  http::Response whole(const std::shared_ptr<Job>& job, const http::Request& request);
  http::Response streamed(const std::shared_ptr<Job>& job);

  ModelText text_;
  InferenceServerOptions options_;
  api::ModelLimits limits_;
  std::int64_t started_;  // seconds since 1970
  std::atomic<std::uint64_t> requests_ = 0;
  http::Metrics metrics_;
  EngineThread engine_;
  http::Server http_;  // the last: it ends first
};

}  // namespace trireme::serve
