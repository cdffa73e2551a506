#include "trireme/serve/followed_engine.h"

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"

namespace trireme::serve {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const SamplingParams& of) {
  Json bias = Json::array();
  for (const auto& [token, value] : of.logit_bias) bias.push_back({token, value});
  return {{"temperature", of.temperature},
          {"top_k", of.top_k},
          {"top_p", of.top_p},
          {"min_p", of.min_p},
          {"presence", of.presence_penalty},
          {"frequency", of.frequency_penalty},
          {"repetition", of.repetition_penalty},
          {"bias", bias},
          {"seed", of.seed}};
}

SamplingParams sampling_of(const Json& json) {
  SamplingParams out{.temperature = json.at("temperature"),
                     .top_k = json.at("top_k"),
                     .top_p = json.at("top_p"),
                     .min_p = json.at("min_p"),
                     .presence_penalty = json.at("presence"),
                     .frequency_penalty = json.at("frequency"),
                     .repetition_penalty = json.at("repetition")};
  for (const Json& one : json.at("bias")) out.logit_bias[one.at(0).get<std::int64_t>()] = one.at(1).get<double>();
  out.seed = json.at("seed").get<std::uint64_t>();
  return out;
}

Json to_json(const EngineRequest& of) {
  return {{"id", of.id},
          {"prompt", of.prompt},
          {"most", of.max_new_tokens},
          {"sampling", to_json(of.sampling)},
          {"choice", of.choice},
          {"stop", of.stop_tokens},
          {"logprobs", of.logprobs ? Json(*of.logprobs) : Json(nullptr)},
          {"salt", std::vector<unsigned char>(of.salt.begin(), of.salt.end())}};
}

EngineRequest request_of(const Json& json) {
  EngineRequest out{.id = json.at("id").get<RequestId>(),
                    .prompt = json.at("prompt").get<std::vector<std::int64_t>>(),
                    .max_new_tokens = json.at("most").get<std::int64_t>(),
                    .sampling = sampling_of(json.at("sampling")),
                    .choice = json.at("choice").get<std::uint64_t>(),
                    .stop_tokens = json.at("stop").get<std::vector<std::int64_t>>()};
  if (!json.at("logprobs").is_null()) out.logprobs = json.at("logprobs").get<std::size_t>();
  const auto salt = json.at("salt").get<std::vector<unsigned char>>();
  out.salt.assign(salt.begin(), salt.end());
  return out;
}

}  // namespace

std::string to_text(const EngineOrders& orders) {
  if (orders.requests.empty() && orders.cancels.empty() && !orders.end) return {};
  Json requests = Json::array();
  for (const EngineRequest& request : orders.requests) requests.push_back(to_json(request));
  return Json{{"requests", requests}, {"cancels", orders.cancels}, {"end", orders.end}}.dump();
}

EngineOrders orders_of(const std::string& text) {
  EngineOrders orders;
  if (text.empty()) return orders;
  const Json json = Json::parse(text);
  for (const Json& request : json.at("requests")) orders.requests.push_back(request_of(request));
  orders.cancels = json.at("cancels").get<std::vector<RequestId>>();
  orders.end = json.at("end").get<bool>();
  return orders;
}

void tell_followers(comm::Group& world, const EngineOrders& orders) {
  std::string text = to_text(orders);
  auto size = static_cast<std::int64_t>(text.size());
  world.broadcast({&size, 1, comm::DType::kI64}, 0).wait();
  if (size > 0) world.broadcast({text.data(), text.size(), comm::DType::kU8}, 0).wait();
}

void follow(InferenceEngine& engine, comm::Group& world) {
  while (true) {
    std::int64_t size = 0;
    world.broadcast({&size, 1, comm::DType::kI64}, 0).wait();
    std::string text(static_cast<std::size_t>(size), '\0');
    if (size > 0) world.broadcast({text.data(), text.size(), comm::DType::kU8}, 0).wait();
    EngineOrders orders = orders_of(text);
    if (orders.end) return;
    for (EngineRequest& request : orders.requests) {
      const auto why = engine.add(std::move(request));
      TRIREME_CHECK(!why, "rank 0 took a request, but {}", *why);
    }
    for (const RequestId id : orders.cancels) engine.cancel(id);
    if (!engine.idle()) engine.step();
  }
}

}  // namespace trireme::serve
