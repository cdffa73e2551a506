// The page's server: who may do what, streams, replay, limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/dashboard/folders.h"
#include "tests/http/client.h"
#include "trireme/dashboard/assets.h"
#include "trireme/dashboard/catalogue.h"
#include "trireme/dashboard/dashboard.h"
#include "trireme/observe/heartbeat.h"

namespace trireme::dashboard {
namespace {

namespace fs = std::filesystem;
using http::Answer;
using http::get_text;
using http::post_text;
using http::RawClient;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kToken = "0123456789abcdef";

class DashboardTest : public OwnFolder {
 protected:
  Dashboard& started(DashboardOptions options = {}) {
    options.roots = {folder_};
    options.token = kToken;
    options.look = std::chrono::milliseconds(20);
    options.look_around = std::chrono::milliseconds(60);
    page_ = std::make_unique<Dashboard>(std::move(options));
    page_->start();
    return *page_;
  }
  Answer ask(const std::string& request) { return RawClient(page_->port()).ask(request); }
  static std::string with_token() { return fmt::format("Authorization: Bearer {}\r\n", kToken); }
  std::string id(const char* name) const { return place_id(fs::canonical(folder_ / name)); }

  std::unique_ptr<Dashboard> page_;
};

TEST_F(DashboardTest, ServesThePageAndItsFilesAndNothingElse) {
  started();
  const Answer page = ask(get_text("/"));
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, HasSubstr("/assets/app.js"));
  EXPECT_THAT(page.header("Content-Security-Policy"), HasSubstr("default-src 'self'"));
  EXPECT_EQ(page.header("Access-Control-Allow-Origin"), "(none)");
  for (const Asset& asset : assets()) {
    if (asset.name == "index.html") continue;
    EXPECT_EQ(ask(get_text(fmt::format("/assets/{}", asset.name))).status, 200) << asset.name;
    EXPECT_THAT(std::string(asset.bytes), Not(::testing::ContainsRegex("https?://(cdn|unpkg|fonts)"))) << asset.name;
  }
  for (const char* path :
       {"/assets/../server.cpp", "/assets/%2e%2e/x", "/assets/", "/api/runs/..%2f..%2fetc%2fpasswd/recipe",
        "/api/runs/%2e%2e/recipe", "/recipe.toml", "/api/runs/x/../../recipe"}) {
    const int status = ask(get_text(path)).status;
    EXPECT_TRUE(status == 404 || status == 400) << path << ": " << status;
  }
}

TEST_F(DashboardTest, TellsOfRunsAndTheirCurves) {
  make_run(folder_ / "<script>alert(1)<", 300);
  started();
  const auto overview = nlohmann::json::parse(ask(get_text("/api/overview")).body);
  ASSERT_EQ(overview["runs"].size(), 1U);
  const auto& run = overview["runs"][0];
  EXPECT_EQ(run["name"], "<script>alert(1)<");
  EXPECT_EQ(run["state"], "finished");
  EXPECT_LE(run["spark"]["x"].size(), 70U);
  const std::string where = fmt::format("/api/runs/{}/", run["id"].get<std::string>());
  const auto series = nlohmann::json::parse(ask(get_text(where + "series?curves=loss,lr")).body);
  EXPECT_EQ(series.size(), 2U);
  EXPECT_EQ(nlohmann::json::parse(ask(get_text(where + "pipeline")).body), nullptr);
  EXPECT_EQ(nlohmann::json::parse(ask(get_text(where + "ranks")).body)["verdict"]["state"], "idle");
  EXPECT_THAT(ask(get_text(where + "recipe")).body, HasSubstr("[run]"));
  const auto compared = nlohmann::json::parse(ask(get_text("/api/compare?runs=" + run["id"].get<std::string>())).body);
  EXPECT_EQ(compared.size(), 1U);
  EXPECT_EQ(ask(get_text("/api/compare?runs=nosuchrun")).status, 404);
}

TEST_F(DashboardTest, ChangesNeedTheTokenInAHeaderOfOurOwnPage) {
  make_run(folder_ / "run", 5, false);
  const HeldRunLock lock(folder_ / "run");
  started();
  const std::string save = fmt::format("/api/runs/{}/actions/save", id("run"));
  EXPECT_EQ(ask(post_text(save, "")).status, 401);
  EXPECT_EQ(ask(post_text(save, "", "Authorization: Bearer wrong\r\n")).status, 401);
  EXPECT_EQ(ask(post_text(save, "", fmt::format("Cookie: trireme_dashboard={}\r\n", kToken))).status, 401);
  EXPECT_EQ(ask(post_text(save, "", with_token() + "Origin: http://evil.example\r\n")).status, 403);
  EXPECT_FALSE(observe::take_save_wish(folder_ / "run"));
  EXPECT_EQ(ask(post_text(save, "", with_token())).status, 200);
  EXPECT_TRUE(observe::take_save_wish(folder_ / "run"));
  EXPECT_EQ(ask(get_text(save)).status, 405);
  EXPECT_EQ(ask(fmt::format("GET /api/overview HTTP/1.1\r\nHost: rebound.example\r\n\r\n")).status, 421);
  const std::string note = fmt::format("/api/runs/{}/note", id("run"));
  const std::string json = with_token() + "Content-Type: application/json\r\n";
  EXPECT_EQ(ask(post_text(note, R"({"note":"<b>hello</b>"})", json)).status, 200);
  EXPECT_EQ(read_all(folder_ / "run" / "note.txt"), "<b>hello</b>");
  EXPECT_EQ(ask(post_text(note, R"({"note":7})", json)).status, 400);
  EXPECT_EQ(ask(post_text(note, "{", json)).status, 400);
  EXPECT_EQ(ask(post_text(note, std::string(100'000, 'x'), json)).status, 413);
  EXPECT_EQ(ask(post_text("/api/runs/nosuchrun/actions/save", "", with_token())).status, 404);
}

TEST_F(DashboardTest, FromOtherMachinesReadingNeedsTheTokenToo) {
  make_run(folder_ / "run", 5);
  started({.address = "0.0.0.0"});
  EXPECT_EQ(ask(get_text("/")).status, 200) << "the page asks for the token";
  EXPECT_EQ(ask(get_text("/api/overview")).status, 401);
  EXPECT_EQ(ask(get_text("/metrics")).status, 401);
  EXPECT_EQ(ask(post_text("/api/login", "")).status, 401);
  const Answer login = ask(post_text("/api/login", "", with_token()));
  const std::string cookie = login.header("Set-Cookie");
  EXPECT_THAT(cookie, HasSubstr("HttpOnly"));
  EXPECT_THAT(cookie, HasSubstr("SameSite=Strict"));
  const std::string sent = "Cookie: " + cookie.substr(0, cookie.find(';')) + "\r\n";
  EXPECT_EQ(ask(get_text("/api/overview", sent)).status, 200);
}

TEST_F(DashboardTest, EventsTellOfNewStepsAndAreReplayed) {
  make_run(folder_ / "run", 5, false);
  const HeldRunLock lock(folder_ / "run");
  observe::write_heartbeat(folder_ / "run", {});
  started();
  RawClient browser(page_->port());
  browser.send(get_text("/api/events"));
  EXPECT_THAT(browser.receive_until("event: snapshot"), HasSubstr("snapshot"));
  observe::RunLog log(folder_ / "run", 5);
  log.step(step_of_run(6, 0.25));
  const std::string first = browser.receive_until("\"rows\":[[6,0.25");
  EXPECT_THAT(first, HasSubstr("event: run"));
  const std::size_t at = first.rfind("id: ");
  ASSERT_NE(at, std::string::npos);
  const std::string last = first.substr(at + 4, first.find('\n', at) - at - 4);
  // The page loses its connection here: it gets what it missed, and no snapshot.
  browser.close();
  log.step(step_of_run(7, 0.125));
  ASSERT_TRUE(http::soon([&] { return ask(get_text("/api/overview")).body.find("\"step\":7") != std::string::npos; }));
  RawClient again(page_->port());
  again.send(get_text("/api/events", fmt::format("Last-Event-ID: {}\r\n", last)));
  const std::string replayed = again.receive_until("\"rows\":[[7,0.125");
  EXPECT_THAT(replayed, HasSubstr("event: run"));
  EXPECT_THAT(replayed, Not(HasSubstr("snapshot")));
  EXPECT_THAT(replayed, Not(HasSubstr("[6,0.25")));
}

TEST_F(DashboardTest, SixtyFourStreamsAndSlowClientsLeaveRoomForRequests) {
  make_run(folder_ / "run", 5, false);
  const HeldRunLock lock(folder_ / "run");
  observe::write_heartbeat(folder_ / "run", {});
  started();
  std::vector<std::unique_ptr<RawClient>> pages, slow;
  for (int i = 0; i < 64; ++i) {
    pages.push_back(std::make_unique<RawClient>(page_->port(), i % 2 == 0 ? 2048 : 0));  // half of them never read on
    pages.back()->send(get_text("/api/events"));
    ASSERT_THAT(pages.back()->receive_until("event: snapshot"), HasSubstr("snapshot")) << i;
  }
  for (int i = 0; i < 100; ++i) {  // a head that never ends costs a buffer
    slow.push_back(std::make_unique<RawClient>(page_->port()));
    slow.back()->send("GET / HTTP/1.1\r\nHost: loc");
  }
  const Answer full = ask(get_text("/api/events"));
  EXPECT_EQ(full.status, 503);
  EXPECT_NE(full.header("Retry-After"), "(none)");
  observe::RunLog log(folder_ / "run", 5);
  for (int step = 6; step < 30; ++step) log.step(step_of_run(step, 1.0 / step));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(ask(get_text("/api/overview")).status, 200);
  EXPECT_THAT(pages[1]->receive_until("\"step\":29"), HasSubstr("\"step\":29"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  pages.clear();
  EXPECT_TRUE(http::soon([&] {
    RawClient client(page_->port());
    client.send(get_text("/api/events"));
    return client.receive_until("\r\n").find("200") != std::string::npos;
  })) << "places of pages that were closed are free again";
}

TEST_F(DashboardTest, MetricsAreThereForPrometheus) {
  make_run(folder_ / "a \"run\"", 5, false);
  make_run(folder_ / "trains", 2, false);
  fs::create_directory(folder_ / "trains" / "ranks");
  write_all(
      folder_ / "trains" / "ranks" / "00000.jsonl",
      R"({"step":2,"metrics":{"memory/peak_bytes":100,"comm/cp.dp/all_reduce_bytes":123456789012,"comm/pp/send_bytes":7}})"
      "\n");
  observe::StepRecord noisy = step_of_run(1, 2.0);
  noisy.noise_scale = 4096;
  observe::RunLog(folder_ / "noisy", std::nullopt).step(noisy);
  const HeldRunLock lock(folder_ / "trains");
  started();
  const std::string text = ask(get_text("/metrics")).body;
  EXPECT_THAT(text, HasSubstr("trireme_noise_scale_tokens{run=\"noisy\"} 4096"));
  EXPECT_THAT(text, Not(HasSubstr("trireme_noise_scale_tokens{run=\"trains\"}")));
  EXPECT_THAT(text, HasSubstr("# TYPE trireme_comm_bytes_total counter"));
  EXPECT_THAT(
      text, HasSubstr(R"(trireme_comm_bytes_total{run="trains",rank="0",group="cp.dp",op="all_reduce"} 123456789012)"));
  EXPECT_THAT(text, HasSubstr(R"({run="trains",rank="0",group="pp",op="send"} 7)"));
  EXPECT_THAT(text, HasSubstr(R"(trireme_memory_bytes{run="trains",rank="0",label="peak"} 100)"));
  EXPECT_THAT(text, HasSubstr("# TYPE trireme_step gauge"));
  EXPECT_THAT(text, HasSubstr("trireme_step{run=\"a \\\"run\\\"\"} 5"));
  EXPECT_THAT(text, HasSubstr("trireme_tokens_total{run=\"a \\\"run\\\"\"} 10240"));
  EXPECT_THAT(text, HasSubstr("state=\"failed\"} 1"));
}

TEST_F(DashboardTest, AWebhookReachesAnotherServerSigned) {
  http::Metrics metrics;
  std::promise<http::Request> arrived;
  http::Server other({}, metrics);
  other.post("/hook/{name}", [&](const http::Request& request) {
    arrived.set_value(request);
    return http::Response::json("{}");
  });
  other.start();
  make_run(folder_ / "run", 5, false);
  DashboardOptions options;
  options.webhook = {.urls = {fmt::format("http://127.0.0.1:{}/hook/x?y=1", other.port())}, .secret = "s"};
  started(std::move(options));
  observe::RunLog(folder_ / "run", 5).event("stop", {{"step", 5}, {"why", "finished"}});
  std::future<http::Request> got = arrived.get_future();
  ASSERT_EQ(got.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  const http::Request request = got.get();
  EXPECT_EQ(nlohmann::json::parse(request.body)["event"], "finished");
  EXPECT_EQ(*request.header("X-Trireme-Event"), "finished");
  EXPECT_EQ(*request.header("X-Trireme-Signature"), signature_of("s", request.body));
  EXPECT_EQ(*request.query_value("y"), "1");
  page_.reset();
}

TEST_F(DashboardTest, NewRunsAppearAndRemovedOnesGo) {
  started();
  EXPECT_EQ(page_->runs(), 0U);
  make_run(folder_ / "later", 3);
  EXPECT_TRUE(http::soon([&] { return page_->runs() == 1; }));
  fs::remove_all(folder_ / "later");
  EXPECT_TRUE(http::soon([&] { return page_->runs() == 0; }));
}

}  // namespace
}  // namespace trireme::dashboard
