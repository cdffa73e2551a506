#include "trireme/dashboard/dashboard.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/version.h"
#include "trireme/base/wall_clock.h"
#include "trireme/dashboard/assets.h"
#include "trireme/dashboard/watch.h"

namespace trireme::dashboard {
namespace {

using http::HttpError;
using http::Request;
using http::Response;
using observe::Json;

constexpr const char* kCookie = "trireme_dashboard";
constexpr std::size_t kMostCompared = 100;
constexpr http::RouteOptions kForAll{.need = http::Need::kNothing};

std::string_view type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "application/octet-stream";
}

Response json_response(const Json& json) { return Response::json(observe::line_of(json)); }

std::vector<std::string> listed_query(const Request& request, std::string_view key) {
  const std::string* value = request.query_value(key);
  if (value == nullptr || value->empty()) return {};
  return split(*value, ',');
}

http::ServerOptions server_options(const DashboardOptions& options) {
  const bool loopback = options.address == "127.0.0.1" || options.address == "localhost" || options.address == "::1";
  http::ServerOptions out{.address = options.address, .port = options.port};
  out.access = {.keys = {options.token},
                .keys_for_reading = !loopback,
                .cookie = kCookie,
                .allowed_hosts = options.allowed_hosts};
  out.limits.body_bytes = 64 << 10;
  out.limits.requests = options.streams + 32;
  out.limits.connections = options.streams + 256;
  out.limits.retry_after = std::chrono::seconds(2);
  return out;
}

}  // namespace

class Dashboard::Impl {
 public:
  explicit Impl(DashboardOptions options)
      : options_(std::move(options)),
        webhook_(options_.webhook),
        watch_({.roots = options_.roots, .feed = feed_, .metrics = metrics_, .webhook = webhook_}),
        server_(server_options(options_), metrics_) {
    TRIREME_CHECK(!options_.token.empty(), "a dashboard needs a token");
    metrics_.add_collector([this](http::Samples& samples) {
      watch_.collect(samples);
      samples.queue("events", feed_.queue());
      samples.queue("webhooks", webhook_.queue());
    });
    add_pages();
    add_reads();
    add_changes();
    watch_.look(/*around=*/true);
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    if (watcher_.joinable()) watcher_.join();
    feed_.close();
    server_.stop();
  }

  void start() {
    watcher_ = std::thread([this] { watch(); });
    server_.start();
  }
  void drain(std::chrono::milliseconds timeout) {
    feed_.close();
    server_.drain(timeout);
  }
  const http::Server& server() const { return server_; }
  const FolderWatch& runs() const { return watch_; }

 private:
  void add_pages();
  void add_reads();
  void add_changes();
  Response events(const Request& request);
  Response compared(const Request& request);
  void watch();

  DashboardOptions options_;
  http::Metrics metrics_;
  http::EventFeed feed_;
  Webhook webhook_;
  FolderWatch watch_;
  http::Server server_;
  std::atomic<std::size_t> streams_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false, look_now_ = false;
  std::thread watcher_;
};

void Dashboard::Impl::watch() {
  auto around = std::chrono::steady_clock::now();
  while (true) {
    bool soon = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, options_.look, [&] { return closing_ || look_now_; });
      if (closing_) return;
      soon = std::exchange(look_now_, false);
    }
    const auto now = std::chrono::steady_clock::now();
    const bool all = soon || now - around >= options_.look_around;
    if (all) around = now;
    try {
      watch_.look(all);
    } catch (const std::exception& error) {  // a folder that goes away while we look is no reason to end
      log_warn("looking at the runs failed: {}", error.what());
    }
  }
}

/// The page itself has no secrets: it is shown to everybody, and asks for the token where one is needed.
void Dashboard::Impl::add_pages() {
  for (const Asset& asset : assets()) {
    const bool index = asset.name == "index.html";
    server_.asset(index ? "/" : fmt::format("/assets/{}", asset.name), type_of(asset.name), asset.bytes, kForAll);
  }
}

Response Dashboard::Impl::events(const Request& request) {
  // Taken back when the answer is gone, whether its stream ever began or not.
  if (++streams_ > options_.streams) {
    --streams_;
    Response full =
        HttpError(503, fmt::format("{} pages are open, as many as may; close one", options_.streams), {.code = "busy"})
            .response();
    return std::move(full).set("Retry-After", "5");
  }
  const std::shared_ptr<void> place(nullptr, [this](void*) { --streams_; });
  Response response = http::follow(feed_, request, {.snapshot = [this] { return watch_.overview(); }});
  response.stream = [place, stream = std::move(response.stream)](http::Writer& writer) { stream(writer); };
  return response;
}

Response Dashboard::Impl::compared(const Request& request) {
  const auto ids = listed_query(request, "runs");
  if (ids.size() > kMostCompared) throw HttpError(400, fmt::format("at most {} runs are compared", kMostCompared));
  Json out = Json::object();
  for (const std::string& id : ids) {
    out[id] = watch_.with_run(id, [](WatchedRun& run) {
      return run.series_json({"loss", "validation", "tokens", "elapsed"});
    });
  }
  return json_response(out);
}

void Dashboard::Impl::add_reads() {
  server_.get("/api/session", [](const Request&) {
    return json_response({{"version", kVersion}, {"time", wall_seconds()}});
  });
  server_.get("/api/overview", [this](const Request&) { return Response::json(watch_.overview()); });
  server_.get("/api/events", [this](const Request& request) { return events(request); });
  server_.get("/api/compare", [this](const Request& request) { return compared(request); });
  const auto of_run = [this](const std::string& what, std::function<Json(WatchedRun&, const Request&)> read) {
    server_.get("/api/runs/{run}/" + what, [this, read = std::move(read)](const Request& request) {
      return json_response(watch_.with_run(request.param("run"), [&](WatchedRun& run) { return read(run, request); }));
    });
  };
  of_run("series",
         [](WatchedRun& run, const Request& request) { return run.series_json(listed_query(request, "curves")); });
  of_run("ranks", [](WatchedRun& run, const Request&) { return run.ranks_json(wall_seconds()); });
  of_run("experts", [](WatchedRun& run, const Request&) { return run.experts_json(); });
  of_run("recipe", [](WatchedRun& run, const Request&) { return run.recipe_json(); });
  of_run("pipeline", [](WatchedRun& run, const Request&) -> Json {
    try {
      return run.pipeline_json();
    } catch (const Error& error) {
      throw HttpError(500, fmt::format("pipeline.json cannot be read: {}", error.message()));
    }
  });
  server_.get("/api/sweeps/{sweep}", [this](const Request& request) {
    return json_response(watch_.with_sweep(request.param("sweep"), [](WatchedSweep& sweep) { return sweep.json(); }));
  });
  server_.get("/api/sweeps/{sweep}/trials.csv", [this](const Request& request) {
    const Json text = watch_.with_sweep(request.param("sweep"), [](WatchedSweep& sweep) -> Json {
      if (sweep.overview() == nullptr) throw HttpError(409, "the sweep's folder cannot be read");
      return csv_text(*sweep.overview());
    });
    return Response::text(text.get<std::string>(), "text/csv; charset=utf-8")
        .set("Content-Disposition", "attachment; filename=trials.csv");
  });
}

void Dashboard::Impl::add_changes() {
  const auto done = [this](const std::string& text) {
    const std::lock_guard lock(mutex_);
    look_now_ = true;  // the page shows what became of it
    changed_.notify_all();
    return json_response({{"done", text}});
  };
  server_.post("/api/login", [this](const Request&) {
    return Response::json("{}").set("Set-Cookie", http::key_cookie(kCookie, options_.token));
  });
  server_.post("/api/runs/{run}/actions/{action}", [this, done](const Request& request) {
    const Json text = watch_.with_run(request.param("run"), [&](WatchedRun& run) -> Json {
      return act_on(run, request.param("action"), options_.control);
    });
    return done(text.get<std::string>());
  });
  server_.post("/api/sweeps/{sweep}/actions/{action}", [this, done](const Request& request) {
    const Json text = watch_.with_sweep(request.param("sweep"), [&](WatchedSweep& sweep) -> Json {
      return act_on(sweep, request.param("action"), options_.control);
    });
    return done(text.get<std::string>());
  });
  server_.post("/api/runs/{run}/note", [this, done](const Request& request) {
    const auto body = http::json_body(request);
    const auto note = body.find("note");
    if (note == body.end() || !note->is_string()) throw HttpError(400, "\"note\" must be a text", {.param = "note"});
    watch_.with_run(request.param("run"), [&](WatchedRun& run) -> Json {
      write_note(run, note->get<std::string>());
      return nullptr;
    });
    return done("noted");
  });
}

Dashboard::Dashboard(DashboardOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Dashboard::~Dashboard() = default;
void Dashboard::start() { impl_->start(); }
int Dashboard::port() const { return impl_->server().port(); }
std::string Dashboard::url() const { return impl_->server().url(); }
std::size_t Dashboard::runs() const { return impl_->runs().runs(); }
std::size_t Dashboard::experiments() const { return impl_->runs().experiments(); }
void Dashboard::drain(std::chrono::milliseconds timeout) { impl_->drain(timeout); }

}  // namespace trireme::dashboard
