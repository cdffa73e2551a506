#include "trireme/formats/hf_config.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/formats/samples.h"
#include "trireme/formats/format_error.h"

namespace trireme::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

HfConfig sample() { return read_hf_config(fixtures() / "hf/whole/config.json"); }

TEST(HfConfig, GivesValuesByTheirTypes) {
  const HfConfig config = sample();
  EXPECT_EQ(config.get<std::int64_t>("hidden_size"), 8);
  EXPECT_EQ(config.get<double>("rms_norm_eps"), 1e-5);
  EXPECT_EQ(config.get<double>("hidden_size"), 8.0);
  EXPECT_EQ(config.get<std::string>("model_type"), "llama");
  EXPECT_FALSE(config.get<bool>("tie_word_embeddings"));
  EXPECT_EQ(config.get<double>("rope_scaling.factor"), 8.0);
  EXPECT_THAT(config.get<std::vector<std::string>>("architectures"), ElementsAre("LlamaForCausalLM"));
  EXPECT_THAT(config.get<std::vector<std::int64_t>>("eos_token_id"), ElementsAre(2, 3));
  EXPECT_THAT(config.get<std::vector<double>>("time_step_limit"), ElementsAre(0.0, INFINITY));
}

TEST(HfConfig, NullAndMissingAreTheSame) {
  const HfConfig config = sample();
  EXPECT_EQ(config.find<std::int64_t>("pad_token_id"), std::nullopt);
  EXPECT_EQ(config.find<std::int64_t>("nonesuch"), std::nullopt);
  EXPECT_EQ(config.find<std::int64_t>("pad_token_id.within"), std::nullopt);
  EXPECT_EQ(config.find<std::int64_t>("hidden_size.within"), std::nullopt);
  EXPECT_EQ(config.get_or<std::int64_t>("head_dim", 4), 4);
  EXPECT_EQ(config.get_or<std::int64_t>("hidden_size", 4), 8);
}

TEST(HfConfig, ErrorsNameFileAndKey) {
  const HfConfig config("{\"a\": {\"size\": \"big\", \"n\": 1.5, \"u\": 18446744073709551615}, \"l\": [1, \"x\"]}",
                        "m/config.json");
  const auto message = [&](auto body) { return message_of<FormatError>([&] { body(); }); };
  EXPECT_EQ(message([&] { config.get<std::int64_t>("a.sise"); }),
            "m/config.json: the key \"a.sise\" is missing or null; did you mean \"size\"?");
  EXPECT_EQ(message([&] { config.get<std::int64_t>("a.size"); }),
            "m/config.json: \"a.size\" must be a whole number, but is \"big\"");
  EXPECT_EQ(message([&] { config.find<std::int64_t>("a.n"); }),
            "m/config.json: \"a.n\" must be a whole number, but is 1.5");
  EXPECT_EQ(message([&] { config.find<std::int64_t>("a.u"); }),
            "m/config.json: \"a.u\" must be a whole number, but is 18446744073709551615");
  EXPECT_EQ(message([&] { config.find<bool>("a.n"); }), "m/config.json: \"a.n\" must be true or false, but is 1.5");
  EXPECT_EQ(message([&] { config.find<std::string>("l"); }), "m/config.json: \"l\" must be a text, but is an array");
  EXPECT_EQ(message([&] { config.find<std::vector<std::int64_t>>("l"); }),
            "m/config.json: \"l\" must be a list of numbers, but is an array");
  EXPECT_EQ(message([] { HfConfig("[1]", "c"); }), "c: must be an object {...}, but is a array (byte 0)");
  EXPECT_THAT(message([] { HfConfig("{\"a\": }", "c"); }), HasSubstr("c: a value is expected, not '}' (byte 6)"));
}

TEST(HfConfig, UnchangedItIsTheBytesThatWereRead) {
  const std::string odd = "{\"b\":1e-5 ,\n\t\"a\" : 1.50, \"\\u00e9\": {}}";
  HfConfig config(odd, "c");
  config.set("b", 1e-5);  // the same value is no change
  EXPECT_EQ(config.text(), odd);
  const HfConfig copy = config;
  EXPECT_EQ(copy.text(), odd);
  EXPECT_EQ(copy.json(), config.json());
}

TEST(HfConfig, ChangedItKeepsAllElse) {
  HfConfig config = sample();
  const std::string before = config.text();
  config.set("torch_dtype", "bfloat16");
  std::string expected = before;
  expected.replace(expected.find("\"float16\""), 9, "\"bfloat16\"");
  EXPECT_EQ(config.text(), expected);
  config.set("torch_dtype", "float16");
  EXPECT_EQ(config.text(), before);
}

TEST(HfConfig, NewKeysTakeTheirPlace) {
  HfConfig sorted("{\"a\": 1, \"c\": {\"y\": 2}}", "c");
  sorted.set("b", true);
  sorted.set("c.z", nullptr);
  EXPECT_EQ(sorted.text(), "{\n  \"a\": 1,\n  \"b\": true,\n  \"c\": {\n    \"y\": 2,\n    \"z\": null\n  }\n}\n");
  HfConfig unsorted("{\"z\": 1, \"c\": 2}", "c");
  unsorted.set("a", 3);
  EXPECT_EQ(unsorted.json().dump(), "{\"z\":1,\"c\":2,\"a\":3}");
  EXPECT_EQ(message_of<FormatError>([&] { unsorted.set("z.q.r", 1); }),
            "c: \"z.q.r\" cannot be set: \"z\" is no section");
}

}  // namespace
}  // namespace trireme::formats
