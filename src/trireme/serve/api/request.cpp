#include "trireme/serve/api/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "trireme/formats/utf8.h"
#include "trireme/http/message.h"
#include "trireme/serve/api/fields.h"

namespace trireme::serve::api {
namespace {

constexpr std::size_t kMostStops = 16, kMostStopBytes = 1024, kMostPrompts = 128, kMostBiases = 1024;
constexpr std::int64_t kMostLogprobs = 20;

void check_model(Fields& fields, const ModelLimits& limits) {
  const auto model = fields.text("model");
  if (!model || *model == limits.model) return;
  throw http::HttpError(404, fmt::format("the model \"{}\" is not here, but \"{}\" is", *model, limits.model),
                        {.type = "invalid_request_error", .code = "model_not_found", .param = "model"});
}

void take_sampling(Fields& fields, ApiRequest& out) {
  SamplingParams& sampling = out.sampling;
  sampling.temperature = fields.number("temperature", 0, 2).value_or(1);
  sampling.top_p = fields.number("top_p", 0, 1).value_or(1);
  if (sampling.top_p == 0) sampling.top_k = 1;  // the fewest tokens with no probability at all: the likeliest
  if (sampling.top_p == 0) sampling.top_p = 1;
  const std::int64_t top_k = fields.whole("top_k", -1, 1'000'000).value_or(0);
  if (top_k > 0 && sampling.top_k != 1) sampling.top_k = top_k;
  sampling.min_p = fields.number("min_p", 0, 1).value_or(0);
  sampling.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(0);
  sampling.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(0);
  sampling.repetition_penalty = fields.number("repetition_penalty", 0.01, 100).value_or(1);
  if (const auto seed = fields.whole("seed", INT64_MIN, INT64_MAX)) out.seed = static_cast<std::uint64_t>(*seed);
}

void take_logit_bias(Fields& fields, ApiRequest& out, const ModelLimits& limits) {
  const Json* biases = fields.take("logit_bias");
  if (!biases) return;
  if (!biases->is_object() || biases->size() > kMostBiases) {
    refuse_field("logit_bias",
                 fmt::format("logit_bias must be an object of at most {} token numbers and biases, such "
                             "as {{\"50256\": -100}}",
                             kMostBiases),
                 "invalid_type");
  }
  for (const auto& [key, bias] : biases->items()) {
    std::int64_t token = -1;
    const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || stop != key.data() + key.size() || token < 0 || token >= limits.vocab_size) {
      refuse_field("logit_bias",
                   fmt::format("logit_bias names a token that is none of 0 to {}", limits.vocab_size - 1));
    }
    if (!bias.is_number() || !(bias.get<double>() >= -100 && bias.get<double>() <= 100)) {
      refuse_field("logit_bias", fmt::format("logit_bias of token {} must be a number from -100 to 100", token));
    }
    out.sampling.logit_bias[token] = bias.get<double>();
  }
}

void take_stops(Fields& fields, ApiRequest& out, const ModelLimits& limits) {
  if (const Json* stop = fields.take("stop")) {
    const auto add = [&](const Json& text) {
      if (!text.is_string() || text.get_ref<const std::string&>().empty() ||
          text.get_ref<const std::string&>().size() > kMostStopBytes) {
        refuse_field("stop", fmt::format("stop must be a text of 1 to {} bytes, or a list of them", kMostStopBytes),
                     "invalid_type");
      }
      out.stop.push_back(text.get<std::string>());
    };
    if (stop->is_array()) {
      if (stop->size() > kMostStops) refuse_field("stop", fmt::format("stop takes at most {} texts", kMostStops));
      for (const Json& text : *stop) add(text);
    } else {
      add(*stop);
    }
  }
  if (const Json* ids = fields.take("stop_token_ids")) {
    const bool list = ids->is_array() && ids->size() <= 64 && std::ranges::all_of(*ids, [&](const Json& id) {
                        return id.is_number_integer() && id >= 0 && id < limits.vocab_size;
                      });
    if (!list)
      refuse_field("stop_token_ids", "stop_token_ids must be a list of at most 64 token numbers", "invalid_type");
    for (const Json& id : *ids) out.stop_token_ids.push_back(id.get<std::int64_t>());
  }
  out.ignore_eos = fields.boolean("ignore_eos").value_or(false);
}

void take_stream(Fields& fields, ApiRequest& out) {
  out.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.take("stream_options");
  if (!options) return;
  if (!out.stream) refuse_field("stream_options", "stream_options are for stream = true");
  if (!options->is_object()) refuse_field("stream_options", "stream_options must be an object", "invalid_type");
  Fields members(*options, "stream_options.");
  out.include_usage = members.boolean("include_usage").value_or(false);
  members.only("include_obfuscation", {false}, "nothing is hidden on the way");
  members.end();
}

/// What both kinds have.
ApiRequest take_common(Fields& fields, const ModelLimits& limits) {
  ApiRequest out;
  check_model(fields, limits);
  take_sampling(fields, out);
  take_logit_bias(fields, out, limits);
  take_stops(fields, out, limits);
  take_stream(fields, out);
  out.n = static_cast<std::size_t>(fields.whole("n", 1, static_cast<std::int64_t>(limits.max_choices)).value_or(1));
  out.salt = fields.text("cache_salt").value_or("");
  fields.text("user");  // who asks: for the asker's own records
  fields.only("metadata", {Json::object()}, "answers are not stored");
  fields.only("store", {false}, "answers are not stored");
  fields.only("service_tier", {"auto", "default"}, "there is one");
  fields.only("response_format", {Json{{"type", "text"}}}, "answers are plain text");
  fields.only("min_tokens", {0}, "answers end where the model ends them");
  return out;
}

std::vector<std::int64_t> tokens_of(const Json& list, const ModelLimits& limits) {
  std::vector<std::int64_t> tokens;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= limits.vocab_size) {
      refuse_field("prompt", fmt::format("prompt has a token that is none of 0 to {}", limits.vocab_size - 1));
    }
    tokens.push_back(id.get<std::int64_t>());
  }
  if (tokens.empty()) refuse_field("prompt", "prompt is empty: give at least one token");
  return tokens;
}

void take_prompts(Fields& fields, ApiRequest& out, const ModelLimits& limits) {
  const Json* prompt = fields.take("prompt");
  if (!prompt) refuse_field("prompt", "prompt is missing", "missing_required_parameter");
  const char* const what = "prompt must be a text, a list of texts, a list of token numbers, or a list of such lists";
  if (prompt->is_string()) {
    out.prompts.emplace_back(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array() || prompt->empty()) refuse_field("prompt", what, "invalid_type");
  if (prompt->front().is_number()) {
    out.prompts.emplace_back(tokens_of(*prompt, limits));
    return;
  }
  if (prompt->size() > kMostPrompts) refuse_field("prompt", fmt::format("at most {} prompts at once", kMostPrompts));
  for (const Json& each : *prompt) {
    if (each.is_string()) {
      out.prompts.emplace_back(each.get<std::string>());
    } else if (each.is_array()) {
      out.prompts.emplace_back(tokens_of(each, limits));
    } else {
      refuse_field("prompt", what, "invalid_type");
    }
  }
}

/// A text, or parts of which all are texts.
std::string content_of(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse_field(path, path + " must be a text or a list of parts", "invalid_type");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}].", path, i);
    if (!content[i].is_object()) refuse_field(at, at + " must be an object", "invalid_type");
    Fields part(content[i], at);
    if (part.text("type").value_or("") != "text") {
      refuse_field(at + "type", fmt::format("{}type: only parts of type \"text\" are supported", at),
                   "unsupported_parameter");
    }
    const auto words = part.text("text");
    if (!words) refuse_field(at + "text", at + "text is missing", "missing_required_parameter");
    text += *words;
    part.end();
  }
  return text;
}

void take_messages(Fields& fields, ApiRequest& out) {
  const Json* messages = fields.take("messages");
  if (!messages) refuse_field("messages", "messages are missing", "missing_required_parameter");
  if (!messages->is_array() || messages->empty()) {
    refuse_field("messages", "messages must be a list of at least one message", "invalid_type");
  }
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    const Json& message = (*messages)[i];
    if (!message.is_object()) refuse_field(path, path + " must be an object", "invalid_type");
    Fields members(message, path + ".");
    const auto role = members.text("role");
    if (!role) refuse_field(path + ".role", path + ".role is missing", "missing_required_parameter");
    const std::string known = *role == "developer" ? "system" : *role;  // OpenAI's newer name
    if (known != "system" && known != "user" && known != "assistant") {
      refuse_field(path + ".role", fmt::format("{}.role must be system, developer, user or assistant", path));
    }
    const Json* content = members.take("content");
    if (!content) refuse_field(path + ".content", path + ".content is missing", "missing_required_parameter");
    members.only("tool_calls", {Json::array()}, "there are no tools");
    members.only("refusal", {}, "it is no part of a prompt");
    members.only("name", {}, "templates know roles alone");
    members.only("audio", {}, "the model reads text");
    members.only("function_call", {}, "there are no tools");
    members.only("annotations", {Json::array()}, "they are no part of a prompt");
    out.messages.push_back({{"role", known}, {"content", content_of(*content, path + ".content")}});
    members.end();
  }
}

}  // namespace

ApiRequest parse_completion(const Json& body, const ModelLimits& limits) {
  Fields fields(body);
  ApiRequest out = take_common(fields, limits);
  take_prompts(fields, out, limits);
  out.max_tokens = fields.whole("max_tokens", 0, INT32_MAX).value_or(16);
  if (const auto count = fields.whole("logprobs", 0, kMostLogprobs)) out.logprobs = static_cast<std::size_t>(*count);
  out.echo = fields.boolean("echo").value_or(false);
  if (out.echo && out.logprobs) {
    refuse_field("echo", "echo with logprobs is not supported: logits of prompts are not computed",
                 "unsupported_parameter");
  }
  if (const auto best_of = fields.whole("best_of", 1, 1000); best_of && *best_of != static_cast<std::int64_t>(out.n)) {
    refuse_field("best_of", "best_of is not supported, unless it is n", "unsupported_parameter");
  }
  fields.only("suffix", {""}, "models here write forwards");
  fields.end();
  return out;
}

ApiRequest parse_chat(const Json& body, const ModelLimits& limits) {
  Fields fields(body);
  ApiRequest out = take_common(fields, limits);
  out.chat = true;
  take_messages(fields, out);
  const auto newer = fields.whole("max_completion_tokens", 1, INT32_MAX),
             older = fields.whole("max_tokens", 1, INT32_MAX);
  if (newer && older && *newer != *older) {
    refuse_field("max_tokens", "max_tokens and max_completion_tokens differ: give one of them");
  }
  out.max_tokens = newer ? newer : older;
  const bool wants = fields.boolean("logprobs").value_or(false);
  const auto top = fields.whole("top_logprobs", 0, kMostLogprobs);
  if (top && !wants) refuse_field("top_logprobs", "top_logprobs need logprobs = true");
  if (wants) out.logprobs = static_cast<std::size_t>(top.value_or(0));
  fields.only("tools", {Json::array()}, "the server calls no tools");
  fields.only("tool_choice", {"none", "auto"}, "the server calls no tools");
  fields.only("parallel_tool_calls", {true, false}, "the server calls no tools");
  fields.only("functions", {Json::array()}, "the server calls no functions");
  fields.only("function_call", {"none", "auto"}, "the server calls no functions");
  fields.only("modalities", {Json::array({"text"})}, "the model writes text");
  fields.only("audio", {}, "the model writes text");
  fields.only("prediction", {}, "n-gram speculation is the server's own");
  fields.only("reasoning_effort", {}, "the model has no such setting");
  fields.only("verbosity", {}, "the model has no such setting");
  fields.only("web_search_options", {}, "the server searches nothing");
  fields.end();
  return out;
}

TokenizeRequest parse_tokenize(const Json& body, const ModelLimits& limits) {
  Fields fields(body);
  check_model(fields, limits);
  auto prompt = fields.text("prompt"), content = fields.text("content");
  if (prompt.has_value() == content.has_value()) {
    refuse_field("prompt", prompt ? "prompt and content are the same: give one" : "prompt is missing",
                 "missing_required_parameter");
  }
  TokenizeRequest out{.text = prompt ? std::move(*prompt) : std::move(*content)};
  out.add_special = fields.boolean("add_special_tokens").value_or(true);
  fields.end();
  return out;
}

}  // namespace trireme::serve::api
