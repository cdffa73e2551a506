#include "trireme/kernels/tuning.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"

namespace trireme::kernels {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKind = "GPU kernels chosen by timing";

Json to_tree(const GemmPlan& plan) {
  Json words = Json::array();
  for (const std::uint64_t word : plan.words) words.push_back(fmt::format("{:016x}", word));
  return {{"plan", plan.described},      {"us", plan.us}, {"favourite_us", plan.favourite_us}, {"tried", plan.tried},
          {"workspace", plan.workspace}, {"words", words}};
}

GemmPlan plan_of(const Json& tree) {
  GemmPlan plan{.workspace = tree.at("workspace").get<std::int64_t>(),
                .described = tree.at("plan").get<std::string>(),
                .us = tree.at("us").get<double>(),
                .favourite_us = tree.at("favourite_us").get<double>(),
                .tried = tree.at("tried").get<int>()};
  const auto words = tree.at("words").get<std::vector<std::string>>();
  if (words.size() != plan.words.size()) throw std::invalid_argument("a plan has eight words");
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::size_t read = 0;
    plan.words[i] = std::stoull(words[i], &read, 16);
    if (read != words[i].size()) throw std::invalid_argument("\"" + words[i] + "\" is no hexadecimal number");
  }
  return plan;
}

}  // namespace

const GemmPlan* Choices::product(const std::string& key) const {
  const auto found = products_.find(key);
  return found == products_.end() ? nullptr : &found->second;
}

const ChosenVariant* Choices::way(const std::string& key) const {
  const auto found = ways_.find(key);
  return found == ways_.end() ? nullptr : &found->second;
}

const GemmPlan& Choices::add_product(const std::string& key, GemmPlan plan) {
  const auto [place, added] = products_.emplace(key, std::move(plan));
  if (added) ++version_;
  return place->second;
}

const ChosenVariant& Choices::add_way(const std::string& key, ChosenVariant way) {
  const auto [place, added] = ways_.emplace(key, std::move(way));
  if (added) ++version_;
  return place->second;
}

void Choices::drop_product(const std::string& key) {
  if (products_.erase(key) > 0) ++version_;
}

std::string Choices::to_json() const {
  Json products = Json::object(), ways = Json::object();
  for (const auto& [key, plan] : products_) products[key] = to_tree(plan);
  for (const auto& [key, way] : ways_) ways[key] = {{"pick", way.pick}, {"us", way.us}};
  const Json tree{
      {"what", kKind}, {"card", ground_.card}, {"library", ground_.library}, {"products", products}, {"ways", ways}};
  return tree.dump(2) + "\n";
}

std::string Choices::take_json(std::string_view text, std::string_view source) try {
  const Json tree = Json::parse(text);
  if (tree.at("what").get<std::string>() != kKind) throw std::invalid_argument("it is another kind of file");
  const TuningKey other{.card = tree.at("card").get<std::string>(), .library = tree.at("library").get<std::string>()};
  if (other.card != ground_.card)
    return fmt::format("{} was timed on {}, and this is {}", source, other.card, ground_.card);
  if (other.library != ground_.library) {
    return fmt::format("{} was timed with {}, and this is {}", source, other.library, ground_.library);
  }
  // All of it is read before any of it is taken.
  std::map<std::string, GemmPlan> products;
  std::map<std::string, ChosenVariant> ways;
  for (const auto& [key, value] : tree.at("products").items()) products.emplace(key, plan_of(value));
  for (const auto& [key, value] : tree.at("ways").items()) {
    ways.emplace(key, ChosenVariant{.pick = value.at("pick").get<std::string>(),
                                    .us = value.at("us").get<std::map<std::string, double>>()});
  }
  products_.merge(products);
  ways_.merge(ways);
  return "";
} catch (const std::exception& error) {
  throw ConfigError(fmt::format("{} cannot be read as a file of chosen kernels: {}", source, error.what()),
                    "remove it: kernels are then timed again, and bits may differ from those of the run so far");
}

std::string pick_way(const std::map<std::string, double>& us, std::string_view plain, double margin) {
  const auto usual = us.find(std::string(plain));
  TRIREME_CHECK(usual != us.end(), "the plain way {} was not timed", plain);
  std::string best(plain);
  double least = usual->second * (1 - margin);
  for (const auto& [name, time] : us) {
    if (name != plain && time < least) {
      best = name;
      least = time;
    }
  }
  return best;
}

}  // namespace trireme::kernels
