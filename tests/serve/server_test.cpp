// The server over sockets: OpenAI's API, clients that misbehave, limits and the end.
#include "trireme/serve/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/http/client.h"
#include "tests/models/support.h"
#include "trireme/serve/generate.h"

namespace trireme::serve {
namespace {

using http::Answer;
using http::get_text;
using http::post_text;
using http::RawClient;
using nlohmann::json;
using testing::HasSubstr;

/// Bytes are its tokens, so every text has some.
std::unique_ptr<models::Model> byte_model() {
  spec::ModelShape shape = models::tiny_shape(spec::Family::kLlama);
  shape.vocab_size = 257;
  shape.max_seq_len = 4096;
  auto model = models::build(shape);
  models::fill(*model, nn::Precision::kFp32, 5);
  return model;
}

struct InferenceSetup {
  std::vector<std::string> keys = {};
  std::size_t max_requests = 64;
  bool chat = true;
};

class Inference : public testing::Test {
 protected:
  void begin(const InferenceSetup& setup = {}) {
    ModelText text;
    text.tokenizer = data::Tokenizer::bytes();
    text.end_tokens = {256};
    if (setup.chat) {
      text.chat.emplace(
          "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no') }}{% endif %}"
          "[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] ",
          "a test");
    }
    InferenceServerOptions options;
    options.http.access.keys = setup.keys;
    options.model_name = "org/tiny";
    options.fingerprint = "test";
    options.max_len = 4096;
    options.max_requests = setup.max_requests;
    options.on_engine_start = [] { at::set_num_threads(1); };
    auto engine = std::make_unique<InferenceEngine>(
        *model_, EngineOptions{.max_sequences = 16, .prefill_chunk = 64, .kv_tokens = 4 * 4096});
    server_ = std::make_unique<InferenceServer>(std::move(engine), std::move(text), std::move(options));
    server_->start();
  }
  Answer post(std::string_view path, const json& body, std::string_view headers = "") {
    return RawClient(server_->port()).ask(post_text(path, body.dump(), headers));
  }
  json completed(const json& body) {
    const Answer answer = post("/v1/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  std::int64_t held() const { return server_->engine().state().blocks.at(0).held; }
  bool idle() const {
    const auto state = server_->engine().state();
    return state.running + state.waiting == 0 && held() == 0;
  }

  std::unique_ptr<models::Model> model_ = byte_model();
  std::unique_ptr<InferenceServer> server_;
};

/// The data of a stream's events.
std::vector<std::string> events_of(const std::string& body) {
  std::vector<std::string> out;
  for (std::size_t at = 0; (at = body.find("data: ", at)) != std::string::npos;) {
    const std::size_t end = body.find("\n\n", at);
    out.push_back(body.substr(at + 6, end - at - 6));
    at = end;
  }
  return out;
}

TEST_F(Inference, CompletionsAreWhatGenerateGives) {
  begin();
  const std::vector<std::int64_t> prompt{72, 101, 108, 108, 111};
  const auto expected = continue_prompts(
      *model_, {.prompts = {prompt}, .tokens = 20, .sampling = {.temperature = 0.9, .seed = 11}, .stop = {256}})[0];
  const json answer =
      completed({{"prompt", "Hello"}, {"max_tokens", 20}, {"temperature", 0.9}, {"seed", 11}, {"logprobs", 0}});
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "org/tiny");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(answer["usage"]["completion_tokens"], expected.size());
  std::vector<std::int32_t> ids(expected.begin(), expected.end());
  if (ids.back() == 256) ids.pop_back();
  EXPECT_EQ(answer["choices"][0]["text"], data::Tokenizer::bytes()->decode(ids));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], expected.back() == 256 ? "stop" : "length");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"].size(), ids.size());
  EXPECT_EQ(
      completed({{"prompt", prompt}, {"max_tokens", 20}, {"temperature", 0.9}, {"seed", 11}})["choices"][0]["text"],
      answer["choices"][0]["text"]);
}

TEST_F(Inference, AStreamIsTheWholeAnswerInPieces) {
  begin();
  const json body{{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                  {"max_tokens", 30},
                  {"temperature", 0},
                  {"n", 2},
                  {"logprobs", true},
                  {"top_logprobs", 2}};
  const json whole = json::parse(post("/v1/chat/completions", body).body);
  json asked = body;
  asked["stream"] = true;
  asked["stream_options"] = {{"include_usage", true}};
  const Answer answer = post("/v1/chat/completions", asked);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("Content-Type"), "text/event-stream");
  EXPECT_TRUE(answer.whole);
  auto events = events_of(answer.body);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  const json usage = json::parse(events.back());
  events.pop_back();
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
  std::vector<std::string> texts(2);
  std::vector<std::size_t> logprobs(2), finishes(2);
  for (const std::string& event : events) {
    const json chunk = json::parse(event);
    EXPECT_TRUE(chunk["usage"].is_null());
    const json& choice = chunk["choices"][0];
    const auto index = choice["index"].get<std::size_t>();
    EXPECT_EQ(finishes.at(index), 0u) << "a chunk behind the last";
    if (choice["delta"].contains("content")) texts.at(index) += choice["delta"]["content"].get<std::string>();
    if (!choice["logprobs"].is_null()) logprobs.at(index) += choice["logprobs"]["content"].size();
    finishes.at(index) += !choice["finish_reason"].is_null();
  }
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["message"]["content"]);
    EXPECT_EQ(logprobs[i], whole["choices"][i]["logprobs"]["content"].size());
    EXPECT_EQ(finishes[i], 1u);
  }
  EXPECT_EQ(texts[0], texts[1]);  // greedy
}

TEST_F(Inference, StopTextsEndAnAnswerBeforeThem) {
  begin();
  const json free = completed({{"prompt", "abc"}, {"max_tokens", 60}, {"temperature", 0}, {"ignore_eos", true}});
  const std::string text = free["choices"][0]["text"];
  std::size_t at = 3;
  while (static_cast<unsigned char>(text.at(at)) >= 128) ++at;
  const std::string stop = text.substr(at, 1);
  const json cut =
      completed({{"prompt", "abc"}, {"max_tokens", 60}, {"temperature", 0}, {"ignore_eos", true}, {"stop", stop}});
  EXPECT_EQ(cut["choices"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(http::soon([&] { return idle(); }));
}

TEST_F(Inference, ManyAtOnceAreBatchedAndAnsweredAsAlone) {
  begin();
  const auto body = [](int i) {
    return json{{"prompt", "number " + std::to_string(i)},
                {"max_tokens", 40},
                {"temperature", 1},
                {"seed", i},
                {"ignore_eos", true}};
  };
  std::vector<std::string> alone, together(32);
  for (int i = 0; i < 32; ++i) alone.push_back(completed(body(i))["choices"][0]["text"]);
  const auto before = server_->engine().state().totals.steps;
  std::vector<std::thread> clients;
  for (int i = 0; i < 32; ++i) {
    clients.emplace_back([&, i] { together[static_cast<std::size_t>(i)] = completed(body(i))["choices"][0]["text"]; });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(together, alone);
  EXPECT_LT(server_->engine().state().totals.steps - before, 32 * 40 / 4);
}

TEST_F(Inference, MistakesAreToldBeforeTheFirstByte) {
  begin();
  const auto refused = [&](std::string_view path, const json& body) {
    const Answer answer = post(path, body);
    const json error = json::parse(answer.body)["error"];
    return fmt::format("{} {} {}: {}", answer.status, error["code"].dump(), error["param"].dump(),
                       error["message"].get<std::string>());
  };
  EXPECT_THAT(refused("/v1/completions", {{"prompt", "a"}, {"max_tokens", 5000}, {"stream", true}}),
              HasSubstr("400 \"context_length_exceeded\" \"prompt\": the prompt has 1 tokens and 5000 are asked for"));
  EXPECT_THAT(refused("/v1/completions", {{"prompt", "a"}, {"bogus", 1}, {"stream", true}}),
              HasSubstr("400 \"unknown_parameter\" \"bogus\""));
  EXPECT_THAT(refused("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"model", "x"}}),
              HasSubstr("404 \"model_not_found\""));
  EXPECT_EQ(RawClient(server_->port()).ask(post_text("/v1/completions", "{nonsense")).status, 400);
  EXPECT_EQ(RawClient(server_->port()).ask(post_text("/v1/completions", "{\"top_p\": 1e999}")).status, 400);
  EXPECT_EQ(RawClient(server_->port()).ask(get_text("/v1/completions")).status, 405);
  EXPECT_EQ(RawClient(server_->port()).ask(get_text("/v1/nothing")).status, 404);
  server_.reset();
  begin({.chat = false});
  EXPECT_THAT(refused("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "a"}}}}}),
              HasSubstr("400 \"no_chat_template\""));
}

TEST_F(Inference, ModelsTokensAndThePageAreThere) {
  begin();
  const auto get = [&](std::string_view path) { return RawClient(server_->port()).ask(get_text(path)); };
  EXPECT_EQ(json::parse(get("/v1/models").body)["data"][0]["id"], "org/tiny");
  EXPECT_EQ(json::parse(get("/v1/models/org/tiny").body)["id"], "org/tiny");
  EXPECT_EQ(get("/v1/models/other").status, 404);
  EXPECT_EQ(json::parse(post("/tokenize", {{"prompt", "AB"}}).body)["tokens"], json({65, 66}));
  EXPECT_THAT(get("/").body, HasSubstr("<title>trireme chat</title>"));
  completed({{"prompt", "abcdefghijklmnopqrstuvwxyz"}, {"max_tokens", 2}});
  completed({{"prompt", "abcdefghijklmnopqrstuvwxyz"}, {"max_tokens", 2}});
  EXPECT_TRUE(http::soon([&] { return idle(); }));
  const std::string metrics = get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("trireme_serve_cached_tokens_total 16\n"));
  EXPECT_THAT(metrics, HasSubstr("trireme_serve_kv_blocks{group=\"0\",state=\"held\"} 0\n"));
  for (const char* queue : {"serve_waiting", "serve_running"}) {
    EXPECT_THAT(metrics, HasSubstr(fmt::format("trireme_queue_arrivals_total{{queue=\"{}\"}} 2\n", queue)));
    EXPECT_THAT(metrics, HasSubstr(fmt::format("trireme_queue_departures_total{{queue=\"{}\"}} 2\n", queue)));
    const auto sum = [&](std::string_view name) {
      const std::string line = fmt::format("trireme_queue_{}_seconds_total{{queue=\"{}\"}} ", name, queue);
      return std::stod(metrics.substr(metrics.find(line) + line.size()));
    };
    EXPECT_GT(sum("wait"), 0) << queue;
    EXPECT_NEAR(sum("occupancy"), sum("wait"), 1e-8) << queue << " began and ended empty";
  }
}

TEST_F(Inference, AKeyIsAskedOfEverythingButHealthAndThePage) {
  begin({.keys = {"secret"}});
  EXPECT_EQ(RawClient(server_->port()).ask(get_text("/health")).status, 200);
  EXPECT_EQ(RawClient(server_->port()).ask(get_text("/")).status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/v1/models/org/tiny"}) {
    EXPECT_EQ(RawClient(server_->port()).ask(get_text(path)).status, 401) << path;
  }
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize"}) {
    EXPECT_EQ(post(path, {{"prompt", "a"}}).status, 401) << path;
  }
  EXPECT_EQ(post("/v1/completions", {{"prompt", "a"}}, "Authorization: Bearer secret\r\n").status, 200);
}

const json kLongAnswer{{"prompt", "go on"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"stream", true}};

TEST_F(Inference, AClientThatGoesAwayFreesItsBlocks) {
  begin();
  {
    RawClient stream(server_->port()), waits(server_->port());
    stream.send(post_text("/v1/completions", kLongAnswer.dump()));
    EXPECT_THAT(stream.receive_until("data: "), HasSubstr("200 OK"));
    json whole = kLongAnswer;
    whole["stream"] = false;
    waits.send(post_text("/v1/completions", whole.dump()));
    EXPECT_TRUE(http::soon([&] { return server_->engine().state().running == 2; }));
  }
  EXPECT_TRUE(http::soon([&] { return idle(); }));
  EXPECT_LT(server_->engine().state().totals.decode_tokens, 7900);
  // Half a request holds nothing, and others are answered beside it.
  RawClient half(server_->port());
  half.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\":");
  EXPECT_EQ(completed({{"prompt", "a"}, {"max_tokens", 1}})["usage"]["completion_tokens"], 1);
}

TEST_F(Inference, ASlowReaderKeepsNobodyElseWaiting) {
  begin();
  RawClient slow(server_->port(), 1024);
  json many = kLongAnswer;
  many["n"] = 4;
  many["max_tokens"] = 150;
  slow.send(post_text("/v1/completions", many.dump()));
  EXPECT_THAT(slow.receive_until("data: "), HasSubstr("200 OK"));
  for (int i = 0; i < 3; ++i) completed({{"prompt", "a"}, {"max_tokens", 3}});
  // Its tokens wait for it in memory; the KV cache does not.
  EXPECT_TRUE(http::soon([&] { return idle(); }));
}

TEST_F(Inference, AFullQueueAnswers429AndTellsWhenToAskAgain) {
  begin({.max_requests = 2});
  RawClient a(server_->port()), b(server_->port());
  for (RawClient* client : {&a, &b}) {
    client->send(post_text("/v1/completions", kLongAnswer.dump()));
    client->receive_until("data: ");
  }
  const Answer answer = post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.header("Retry-After"), "1");
  EXPECT_EQ(json::parse(answer.body)["error"]["code"], "queue_full");
  EXPECT_THAT(post("/v1/completions", {{"prompt", "a"}, {"n", 3}}).status, 400);  // more than will ever be taken
  a.close();
  b.close();
  EXPECT_TRUE(http::soon([&] { return post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status == 200; }));
}

TEST_F(Inference, DrainingFinishesWhatRunsAndTakesNothingNew) {
  begin();
  json body = kLongAnswer;
  body["max_tokens"] = 300;
  RawClient runs(server_->port()), late(server_->port());
  runs.send(post_text("/v1/completions", body.dump()));
  runs.receive_until("data: ");
  late.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n");
  std::thread drains([&] { EXPECT_TRUE(server_->drain(std::chrono::seconds(20))); });
  std::string rest = runs.receive_until("[DONE]");
  EXPECT_THAT(rest, HasSubstr("\"finish_reason\":\"length\""));
  drains.join();
  EXPECT_TRUE(http::soon([&] { return idle(); }));  // the last token is told before the step has ended
}

}  // namespace
}  // namespace trireme::serve
