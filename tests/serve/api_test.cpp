// Bodies of requests: every field is honoured or refused; and text as it leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/http/message.h"
#include "trireme/serve/api/request.h"
#include "trireme/serve/api/response.h"
#include "trireme/serve/api/text_stream.h"

namespace trireme::serve::api {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const ModelLimits kTestLimits{.model = "tiny", .vocab_size = 100, .max_len = 64, .max_choices = 4};

ApiRequest completion(json more) {
  if (!more.contains("prompt")) more["prompt"] = "Hi";
  return parse_completion(more, kTestLimits);
}
ApiRequest chat_request(json more) {
  if (!more.contains("messages")) more["messages"] = {{{"role", "user"}, {"content", "Hi"}}};
  return parse_chat(more, kTestLimits);
}

/// "400 param: message" of a refusal.
template <typename Parse>
std::string refusal_of(Parse parse, const json& body) {
  try {
    parse(body, kTestLimits);
  } catch (const http::HttpError& error) {
    return std::to_string(error.status()) + " " + error.details().param + ": " + error.message();
  }
  return "taken";
}

TEST(ApiRequest, HasOpenAisDefaults) {
  const ApiRequest request = completion({});
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.n, 1u);
  EXPECT_FALSE(request.stream);
  EXPECT_EQ(chat_request({}).max_tokens, std::nullopt);
}

TEST(ApiRequest, TakesEveryFieldThatItKnows) {
  const ApiRequest request = completion({{"model", "tiny"},
                                         {"prompt", {{1, 2}, {3}}},
                                         {"max_tokens", 5},
                                         {"temperature", 0},
                                         {"top_p", 0.5},
                                         {"top_k", 7},
                                         {"min_p", 0.1},
                                         {"presence_penalty", 1},
                                         {"frequency_penalty", -1},
                                         {"repetition_penalty", 1.1},
                                         {"logit_bias", {{"3", -100}, {"7", 5}}},
                                         {"seed", -3},
                                         {"n", 2},
                                         {"stop", {"a", "b"}},
                                         {"stop_token_ids", {9}},
                                         {"ignore_eos", true},
                                         {"stream", true},
                                         {"stream_options", {{"include_usage", true}}},
                                         {"logprobs", 3},
                                         {"user", "me"},
                                         {"cache_salt", "s"},
                                         {"best_of", 2},
                                         {"suffix", nullptr},
                                         {"response_format", {{"type", "text"}}}});
  EXPECT_EQ(request.prompts.size(), 2u);
  EXPECT_EQ(std::get<1>(request.prompts[0]), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(request.sampling.logit_bias.at(3), -100);
  EXPECT_EQ(request.seed, static_cast<std::uint64_t>(-3));
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request.include_usage && request.ignore_eos);
  EXPECT_EQ(request.logprobs, 3u);
  EXPECT_EQ(request.salt, "s");
  const ApiRequest talk = chat_request(
      {{"messages",
        {{{"role", "developer"}, {"content", "Be brief"}},
         {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}}}},
       {"max_completion_tokens", 9},
       {"logprobs", true},
       {"top_logprobs", 2},
       {"tools", json::array()},
       {"stop", nullptr}});
  EXPECT_EQ(talk.messages.dump(), R"([{"role":"system","content":"Be brief"},{"role":"user","content":"ab"}])");
  EXPECT_EQ(talk.max_tokens, 9);
  EXPECT_EQ(talk.logprobs, 2u);
}

TEST(ApiRequest, RefusesWhatItCannotDo) {
  struct Refused {
    json body;
    const char* why;
  };
  const json chat = {{{"role", "user"}, {"content", "Hi"}}};
  for (const auto& [body, why] : std::vector<Refused>{
           {{{"prompt", "a"}, {"temprature", 1}}, "400 temprature: temprature is not a field that is known here"},
           {{{"prompt", "a"}, {"temperature", 3}}, "400 temperature: temperature must be from 0 to 2, not 3"},
           {{{"prompt", "a"}, {"temperature", "hot"}}, "400 temperature: temperature must be a number"},
           {{{"prompt", "a"}, {"top_p", -0.1}}, "400 top_p"},
           {{{"prompt", "a"}, {"n", 5}}, "400 n: n must be from 1 to 4"},
           {{{"prompt", "a"}, {"n", 1.5}}, "400 n: n must be a whole number"},
           {{{"prompt", "a"}, {"max_tokens", 18446744073709551615ull}}, "400 max_tokens"},
           {{{"prompt", "a"}, {"model", "other"}}, "404 model: the model \"other\" is not here, but \"tiny\" is"},
           {{{"prompt", "a"}, {"suffix", "b"}}, "400 suffix: suffix = \"b\" is not supported"},
           {{{"prompt", "a"}, {"best_of", 3}}, "400 best_of"},
           {{{"prompt", "a"}, {"stop", 3}}, "400 stop"},
           {{{"prompt", "a"}, {"stop", {""}}}, "400 stop"},
           {{{"prompt", "a"}, {"logit_bias", {{"100", 1}}}},
            "400 logit_bias: logit_bias names a token that is none of 0 to 99"},
           {{{"prompt", "a"}, {"logit_bias", {{"1", 101}}}}, "400 logit_bias"},
           {{{"prompt", "a"}, {"stream_options", {{"include_usage", true}}}}, "400 stream_options"},
           {{{"prompt", "a"}, {"echo", true}, {"logprobs", 1}}, "400 echo"},
           {{{"prompt", {1, 100}}}, "400 prompt: prompt has a token that is none of 0 to 99"},
           {{{"prompt", json::array()}}, "400 prompt"},
           {{{"prompt", {{"a", 1}}}}, "400 prompt"},
           {json::object(), "400 prompt: prompt is missing"}}) {
    EXPECT_THAT(refusal_of(parse_completion, body), HasSubstr(why)) << body.dump();
  }
  for (const auto& [body, why] : std::vector<Refused>{
           {{{"messages", chat}, {"tools", {{{"type", "function"}}}}}, "400 tools: tools = "},
           {{{"messages", chat}, {"response_format", {{"type", "json_object"}}}}, "400 response_format"},
           {{{"messages", chat}, {"top_logprobs", 2}}, "400 top_logprobs"},
           {{{"messages", chat}, {"logprobs", 2}}, "400 logprobs"},
           {{{"messages", chat}, {"reasoning_effort", "low"}}, "400 reasoning_effort"},
           {{{"messages", chat}, {"max_tokens", 3}, {"max_completion_tokens", 4}}, "400 max_tokens"},
           {{{"messages", chat}, {"max_tokens", 0}}, "400 max_tokens"},
           {{{"messages", {{{"role", "tool"}, {"content", "x"}}}}}, "400 messages[0].role"},
           {{{"messages", {{{"role", "user"}}}}}, "400 messages[0].content"},
           {{{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}},
            "400 messages[0].content[0].type"},
           {{{"messages", {{{"role", "user"}, {"content", "x"}, {"name", "n"}}}}}, "400 messages[0].name"},
           {{{"messages", json::array()}}, "400 messages"},
           {{{"prompt", "a"}}, "400 messages: messages are missing"}}) {
    EXPECT_THAT(refusal_of(parse_chat, body), HasSubstr(why)) << body.dump();
  }
}

std::string streamed_text(std::string_view text, std::vector<std::string> stops,
                          std::vector<std::string>* pieces = nullptr) {
  const auto tokenizer = data::Tokenizer::bytes();
  TextStream stream(tokenizer.get(), std::move(stops));
  std::string out;
  for (const char c : text) {
    const std::string piece = stream.push(static_cast<unsigned char>(c));
    if (pieces) pieces->push_back(piece);
    out += piece;
    if (stream.stopped()) return out + "|";
  }
  return out + stream.finish();
}

TEST(TextStream, CutsBeforeAStopTextAndNeverShowsAPartOfIt) {
  EXPECT_EQ(streamed_text("one two three", {"two"}), "one |");
  EXPECT_EQ(streamed_text("one twix", {"two"}), "one twix");
  EXPECT_EQ(streamed_text("aaab", {"aab"}), "a|");
  EXPECT_EQ(streamed_text("abcabd", {"abd", "zz"}), "abc|");
  EXPECT_EQ(streamed_text("xSTOPSTOP", {"STOPSTOP", "P"}), "xSTO|");
  EXPECT_EQ(streamed_text("ends with tw", {"two"}), "ends with tw");
  std::vector<std::string> pieces;
  streamed_text("a\n\nb", {"\n\n\n"}, &pieces);
  EXPECT_THAT(pieces, testing::ElementsAre("a", "", "", "\n\nb"));
}

TEST(TextStream, GivesWholeCharactersOnly) {
  std::vector<std::string> pieces;
  EXPECT_EQ(streamed_text("é€\xf0\x9f\x99\x82", {}, &pieces), "é€\xf0\x9f\x99\x82");
  EXPECT_THAT(pieces, testing::ElementsAre("", "é", "", "", "€", "", "", "", "\xf0\x9f\x99\x82"));
  EXPECT_EQ(streamed_text("a\xe2\x82", {}), "a\xef\xbf\xbd");
  TextStream without(nullptr, {});
  EXPECT_EQ(without.push(3) + without.finish(), "");
}

TEST(ApiResponse, SaysUsageOnceAndNullBefore) {
  const AnswerHead head{.chat = true, .id = "chatcmpl-1", .model = "tiny", .created = 7, .include_usage = true};
  const json first = json::parse(first_chunk(head, 0));
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
  EXPECT_TRUE(first.contains("usage") && first["usage"].is_null());
  const json last = json::parse(usage_chunk(head, {.prompt_tokens = 3, .completion_tokens = 4, .cached_tokens = 2}));
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["total_tokens"], 7);
  EXPECT_EQ(last["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

}  // namespace
}  // namespace trireme::serve::api
