#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/formats/samples.h"
#include "trireme/base/random.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/json_reader.h"
#include "trireme/formats/json_text.h"
#include "trireme/formats/utf8.h"

namespace trireme::formats {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

std::string refusal(std::string_view text) {
  return message_of<FormatError>([&] { parse_json(text, "x.json"); });
}

TEST(Json, ReadsEveryKindOfValueInTheOrderOfTheText) {
  const auto json =
      parse_json(R"( {"z": [1, -2, 3.5, 1e3, true, false, null], "a": {"b": "c"}, "": {}, "l": []} )", "x");
  EXPECT_EQ(json.dump(), R"({"z":[1,-2,3.5,1000.0,true,false,null],"a":{"b":"c"},"":{},"l":[]})");
}

TEST(Json, ReadsTheSameAsAnotherReader) {
  // Random texts of JSON pieces, most of them wrong: both readers must agree on which are right and what they mean.
  static constexpr std::string_view kPieces[] = {
      "{",   "}",  "[", "]",    ",",    ":",           "\"a\"", "\"b\"", "1",  "-0", "0.5",
      "1e5", "01", "-", "true", "null", "\"\\u00e9\"", " ",     "\n",    "1.", ".5", "\"\\ud83d\\ude00\"",
      "fals"};
  const Random random(3, "json");
  std::uint64_t draw = 0;
  int right = 0;
  for (int round = 0; round < 60000; ++round) {
    std::string text;
    for (std::uint64_t i = 1 + random.below(7, draw++); i > 0; --i)
      text += kPieces[random.below(std::size(kPieces), draw++)];
    if (text.find("\"a\"") != text.rfind("\"a\"") || text.find("\"b\"") != text.rfind("\"b\"")) continue;  // keys twice
    const auto theirs = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    SCOPED_TRACE(text);
    if (theirs.is_discarded()) {
      refusal(text);
    } else {
      ++right;
      ASSERT_EQ(parse_json(text, "x").dump(), theirs.dump());
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(right, 1000);
}

TEST(Json, SaysWhereATextIsWrong) {
  EXPECT_EQ(refusal(""), "x.json: a value is expected, but the text ends (byte 0)");
  EXPECT_EQ(refusal("{\"a\" 1}"), "x.json: ':' is expected, not '1' (byte 5)");
  EXPECT_EQ(refusal("[1 2]"), "x.json: ',' or ']' is expected, not '2' (byte 3)");
  EXPECT_EQ(refusal("{} x"), "x.json: the end of the JSON text is expected, not 'x' (byte 3)");
  EXPECT_EQ(refusal("{\"a\": 1, \"a\": 2}"), "x.json: the key \"a\" is there twice (byte 9)");
  EXPECT_EQ(refusal("\"abc"), "x.json: the text that begins here does not end (byte 0)");
  EXPECT_EQ(refusal("\"a\nb\""), "x.json: the control character 0x0a must be escaped in a text (byte 2)");
  EXPECT_EQ(refusal("\"\\x\""), "x.json: a backslash may only be followed by one of \" \\ / b f n r t u (byte 1)");
  EXPECT_EQ(refusal("\"\\ud83d\""), "x.json: half a surrogate pair is no character (byte 1)");
  EXPECT_EQ(refusal("\"\\ude00\""), "x.json: half a surrogate pair is no character (byte 1)");
  EXPECT_EQ(refusal("\"\\ud83d\\u0041\""), "x.json: half a surrogate pair is no character (byte 1)");
  EXPECT_EQ(refusal("\"\\u12g4\""), "x.json: four hexadecimal digits are expected after \\u (byte 3)");
  EXPECT_EQ(refusal("[1e999]"), "x.json: the number is too large or too near to 0 for a double (byte 1)");
  EXPECT_EQ(refusal("[\xff]"), "x.json: a value is expected, not the byte 0xff (byte 1)");
}

TEST(Json, TakesNoTextThatIsNotUtf8) {
  for (const std::string bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                                "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xff"}) {
    EXPECT_FALSE(is_utf8(bad));
    EXPECT_THAT(refusal("\"ab" + bad + "\""), HasSubstr("is no part of UTF-8 text here (byte 3)"));
  }
  for (const std::string good :
       {"\x7f", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good));
    EXPECT_EQ(parse_json("\"" + good + "\"", "x").get<std::string>(), good);
  }
}

TEST(Json, RefusesDeepNestingWithoutGoingThere) {
  const std::string open(50'000'000, '[');
  EXPECT_EQ(refusal(open), "x.json: values are nested more than 64 deep (byte 64)");
  std::string objects;
  for (int i = 0; i < 100; ++i) objects += "{\"a\":";
  EXPECT_THAT(refusal(objects), HasSubstr("nested more than 64 deep"));
  EXPECT_EQ(parse_json(std::string(64, '[') + std::string(64, ']'), "x").dump().size(), 128U);
}

TEST(Json, TakesTheNumbersPythonWritesOnlyWhereAsked) {
  const auto json = parse_json("[NaN, Infinity, -Infinity]", "x");
  EXPECT_TRUE(std::isnan(json[0].get<double>()));
  EXPECT_EQ(json[1].get<double>(), INFINITY);
  EXPECT_EQ(json[2].get<double>(), -INFINITY);
  JsonReader strict("NaN", "x");
  EXPECT_THROW(strict.skip(), FormatError);
  JsonReader minus("-Infinity", "x");
  EXPECT_THROW(minus.skip(), FormatError);
}

TEST(Json, KeepsWholeNumbersOf64BitsExactly) {
  EXPECT_EQ(python_json(parse_json("[-9223372036854775808, 9223372036854775807, 18446744073709551615]", "x"),
                        Keys::kAsTheyAre),
            "[\n  -9223372036854775808,\n  9223372036854775807,\n  18446744073709551615\n]");
  EXPECT_EQ(python_json(parse_json("1000000000000000019884624838656", "x"), Keys::kAsTheyAre), "1e+30");
}

TEST(Json, ManyKeysTakeNoQuadraticTime) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += fmt::format("\"{}\":0,", i);
  text.back() = '}';
  EXPECT_EQ(parse_json(text, "x").size(), 300'000U);  // a scan of all keys for each would take minutes
}

TEST(PythonJson, WritesDoublesAsPythonDoes) {
  const std::string text = read_all(fixtures() / "safetensors/doubles.json");
  EXPECT_EQ(python_json(parse_json(text, "doubles.json"), Keys::kAsTheyAre) + "\n", text);
}

TEST(PythonJson, WritesAConfigurationAsPythonDoes) {
  const std::string text = read_all(fixtures() / "hf/whole/config.json");
  EXPECT_EQ(python_json(parse_json(text, "config.json"), Keys::kAsTheyAre) + "\n", text);
}

TEST(PythonJson, SortsByCodePoints) {
  const ordered_json json = {{"b", 1}, {"\U0001f600", 2}, {"\uffee", 3}, {"a", {{"d", 4}, {"c", 5}}}};
  EXPECT_EQ(
      python_json(json, Keys::kSorted),
      "{\n  \"a\": {\n    \"c\": 5,\n    \"d\": 4\n  },\n  \"b\": 1,\n  \"\\uffee\": 3,\n  \"\\ud83d\\ude00\": 2\n}");
}

TEST(JsonString, ReadsBackAsTheSameText) {
  const std::string text("\0\x01\x1f\x7f\"\\/\n\t\b\f\r\xc3\xa9\xf0\x9f\x98\x80", 19);
  EXPECT_EQ(parse_json(json_string(text), "x").get<std::string>(), text);
  EXPECT_EQ(parse_json(python_string(text), "x").get<std::string>(), text);
  EXPECT_EQ(python_string("\x7f\xc3\xa9"), "\"\\u007f\\u00e9\"");
  EXPECT_EQ(json_string("\x7f\xc3\xa9"), "\"\x7f\xc3\xa9\"");
}

TEST(Shown, CutsLongNamesBetweenCharacters) {
  EXPECT_EQ(shown("a\nb"), "\"a\\nb\"");
  const std::string name = std::string(159, 'a') + "\xc3\xa9" + std::string(1000, 'b');
  EXPECT_EQ(shown(name), "\"" + std::string(159, 'a') + "\"... (1161 bytes)");
}

}  // namespace
}  // namespace trireme::formats
