#include "trireme/kernels/tuning.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"

namespace trireme::kernels {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKind = "tuning cache of GPU kernels";

Json to_tree(const GemmAlgorithm& algorithm) {
  Json words = Json::array();
  for (const std::uint64_t word : algorithm.words) words.push_back(fmt::format("{:016x}", word));
  return {{"algorithm", algorithm.described},       {"us", algorithm.us},
          {"heuristic_us", algorithm.heuristic_us}, {"tried", algorithm.tried},
          {"workspace", algorithm.workspace},       {"words", words}};
}

GemmAlgorithm algorithm_of(const Json& tree) {
  GemmAlgorithm algorithm{.workspace = tree.at("workspace").get<std::int64_t>(),
                          .described = tree.at("algorithm").get<std::string>(),
                          .us = tree.at("us").get<double>(),
                          .heuristic_us = tree.at("heuristic_us").get<double>(),
                          .tried = tree.at("tried").get<int>()};
  const auto words = tree.at("words").get<std::vector<std::string>>();
  if (words.size() != algorithm.words.size()) throw std::invalid_argument("an algorithm has eight words");
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::size_t read = 0;
    algorithm.words[i] = std::stoull(words[i], &read, 16);
    if (read != words[i].size()) throw std::invalid_argument("\"" + words[i] + "\" is no hexadecimal number");
  }
  return algorithm;
}

}  // namespace

const GemmAlgorithm* TuningCache::gemm(const std::string& key) const {
  const auto found = gemms_.find(key);
  return found == gemms_.end() ? nullptr : &found->second;
}

const ChosenVariant* TuningCache::variant(const std::string& key) const {
  const auto found = variants_.find(key);
  return found == variants_.end() ? nullptr : &found->second;
}

const GemmAlgorithm& TuningCache::add_gemm(const std::string& key, GemmAlgorithm algorithm) {
  const auto [place, added] = gemms_.emplace(key, std::move(algorithm));
  if (added) ++version_;
  return place->second;
}

const ChosenVariant& TuningCache::add_variant(const std::string& key, ChosenVariant variant) {
  const auto [place, added] = variants_.emplace(key, std::move(variant));
  if (added) ++version_;
  return place->second;
}

void TuningCache::drop_gemm(const std::string& key) {
  if (gemms_.erase(key) > 0) ++version_;
}

std::string TuningCache::to_json() const {
  Json gemms = Json::object(), variants = Json::object();
  for (const auto& [key, algorithm] : gemms_) gemms[key] = to_tree(algorithm);
  for (const auto& [key, variant] : variants_) variants[key] = {{"pick", variant.pick}, {"us", variant.us}};
  const Json tree{
      {"what", kKind}, {"card", key_.card}, {"library", key_.library}, {"gemms", gemms}, {"variants", variants}};
  return tree.dump(2) + "\n";
}

std::string TuningCache::take_json(std::string_view text, std::string_view source) try {
  const Json tree = Json::parse(text);
  if (tree.at("what").get<std::string>() != kKind) throw std::invalid_argument("it is another kind of file");
  const TuningKey other{.card = tree.at("card").get<std::string>(), .library = tree.at("library").get<std::string>()};
  if (other.card != key_.card) return fmt::format("{} was timed on {}, and this is {}", source, other.card, key_.card);
  if (other.library != key_.library) {
    return fmt::format("{} was timed with {}, and this is {}", source, other.library, key_.library);
  }
  // All of it is read before any of it is taken.
  std::map<std::string, GemmAlgorithm> gemms;
  std::map<std::string, ChosenVariant> variants;
  for (const auto& [key, value] : tree.at("gemms").items()) gemms.emplace(key, algorithm_of(value));
  for (const auto& [key, value] : tree.at("variants").items()) {
    variants.emplace(key, ChosenVariant{.pick = value.at("pick").get<std::string>(),
                                        .us = value.at("us").get<std::map<std::string, double>>()});
  }
  gemms_.merge(gemms);
  variants_.merge(variants);
  return "";
} catch (const std::exception& error) {
  throw ConfigError(fmt::format("{} cannot be read as a tuning cache: {}", source, error.what()),
                    "remove it: kernels are then timed again, and bits may differ from those of the run so far");
}

std::string pick_variant(const std::map<std::string, double>& us, std::string_view plain, double margin) {
  const auto usual = us.find(std::string(plain));
  TRIREME_CHECK(usual != us.end(), "the plain variant {} was not timed", plain);
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
