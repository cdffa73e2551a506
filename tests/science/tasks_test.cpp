// Tasks as data, their metrics, and how metrics grow over a family.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/science/tasks/emergence.h"
#include "trireme/science/tasks/task_metrics.h"
#include "trireme/science/tasks/tasks.h"
#include "trireme/science/tasks/yaml.h"

namespace trireme::science {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string task_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Tasks, AdditionIsRightAndOfFixedWidth) {
  const Task task = generate_task("addition:digits=3,count=50,seed=4");
  ASSERT_EQ(task.items.size(), 50U);
  EXPECT_EQ(task.alphabet, 10);
  for (const TaskItem& item : task.items) {
    ASSERT_EQ(item.prompt.size(), 8U);
    EXPECT_EQ(item.answer.size(), 4U);
    EXPECT_EQ(std::stoi(item.prompt.substr(0, 3)) + std::stoi(item.prompt.substr(4, 3)), std::stoi(item.answer));
    const std::set<std::string> wrong(item.distractors.begin(), item.distractors.end());
    EXPECT_EQ(wrong.size(), 3U);
    EXPECT_FALSE(wrong.contains(item.answer));
  }
  EXPECT_EQ(generate_task("addition:digits=3,count=50,seed=4").items, task.items);
  EXPECT_NE(generate_task("addition:digits=3,count=50,seed=5").items, task.items);
}

TEST(Tasks, OtherGeneratorsAreRight) {
  for (const TaskItem& item : generate_task("reverse:length=6,count=20").items) {
    EXPECT_EQ(item.answer, std::string(item.prompt.rbegin() + 1, item.prompt.rend()));
  }
  for (const TaskItem& item : generate_task("copy:length=4,count=20").items)
    EXPECT_EQ(item.answer, item.prompt.substr(0, 4));
  for (const TaskItem& item : generate_task("modular:modulus=7,count=20").items) {
    EXPECT_EQ((std::stoi(item.prompt) + std::stoi(item.prompt.substr(2))) % 7, std::stoi(item.answer)) << item.prompt;
  }
}

/// A key has one answer, whichever seed drew it: what was trained can be asked again, and nothing else tells it.
TEST(Tasks, FactsAreOneAnswerAKey) {
  std::map<std::string, std::string> known;
  for (const int seed : {1, 2}) {
    for (const TaskItem& item :
         generate_task("facts:keys=700,length=4,count=5000,seed=" + std::to_string(seed)).items) {
      ASSERT_EQ(item.prompt.size(), 4U) << "700 keys take three letters and a colon";
      ASSERT_EQ(item.answer.size(), 4U);
      EXPECT_EQ(known.try_emplace(item.prompt, item.answer).first->second, item.answer);
      EXPECT_EQ(std::set<std::string>(item.distractors.begin(), item.distractors.end()).count(item.answer), 0U);
      EXPECT_EQ(item.distractors.size(), 3U);
    }
  }
  EXPECT_EQ(known.size(), 700U);
  // Letters of answers are drawn evenly: 2,800 of them, 26 kinds.
  std::map<char, int> letters;
  for (const auto& [key, answer] : known) {
    for (const char letter : answer) ++letters[letter];
  }
  EXPECT_EQ(letters.size(), 26U);
  for (const auto& [letter, count] : letters) EXPECT_NEAR(count, 2800 / 26.0, 5 * std::sqrt(2800 / 26.0)) << letter;
  EXPECT_THAT(task_error_of([] { generate_task("facts:keys=100,split=test"); }), HasSubstr("cannot be known"));
}

TEST(Tasks, TrainAndTestShareNoQuestion) {
  std::set<std::string> trained;
  for (const TaskItem& item : generate_task("addition:digits=2,count=3000,split=train,seed=1").items)
    trained.insert(item.prompt);
  for (const TaskItem& item : generate_task("addition:digits=2,count=300,split=test,seed=2").items)
    EXPECT_FALSE(trained.contains(item.prompt)) << item.prompt;
}

TEST(Tasks, WrongWordsAreNamed) {
  EXPECT_THAT(task_error_of([] { generate_task("addition:digit=3"); }), HasSubstr("no key digit"));
  EXPECT_THAT(task_error_of([] { generate_task("addition:digits=0"); }), HasSubstr("digits = 0"));
  EXPECT_THAT(task_error_of([] { load_task("questions.txt"); }), HasSubstr("neither a task file"));
  EXPECT_THAT(task_error_of([] { generate_task("copy:split=half"); }), HasSubstr("split = half"));
}

class TaskFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("trireme-tasks-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  std::filesystem::path folder_;
};

TEST_F(TaskFiles, JsonLinesAndTomlSayTheSame) {
  const Task lines = load_task(file("a.jsonl",
                                    "{\"prompt\": \"1+1=\", \"answer\": \"2\", \"distractors\": [\"3\"]}\n\n"
                                    "{\"prompt\": \"2+2=\", \"answer\": \"4\"}\n"));
  const Task toml = load_task(file("a.toml",
                                   "shots = 1\nalphabet = 10\n[[items]]\nprompt = \"1+1=\"\nanswer = \"2\"\n"
                                   "distractors = [\"3\"]\n[[items]]\nprompt = \"2+2=\"\nanswer = \"4\"\n"));
  EXPECT_EQ(lines.items, toml.items);
  EXPECT_EQ(toml.shots, 1);
  EXPECT_EQ(load_task(file("b.jsonl", task_jsonl(lines))).items, lines.items);
  const auto asked = few_shot_items(toml, {});
  EXPECT_EQ(asked[0].prompt, "2+2=4\n1+1=");  // never itself
  EXPECT_EQ(asked[1].prompt, "1+1=2\n2+2=");
  EXPECT_THAT(task_error_of([&] { few_shot_items(toml, {.shots = 2}); }), HasSubstr("draw 2 examples"));
  EXPECT_THAT(task_error_of([&] { load_task(file("c.jsonl", "{\"prompt\": \"x\"}")); }),
              HasSubstr("c.jsonl:1 has no answer"));
  EXPECT_THAT(task_error_of([&] { load_task(file("c.toml", "shot = 1")); }), HasSubstr("shot is not understood"));
}

TEST_F(TaskFiles, ClozeAsksForWordsOfTheText) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "the quick brown foxes jumped over seven lazy hounds again ";
  const Task task = load_task("cloze:file=" + file("text.txt", text) + ",count=10,words=3");
  for (const TaskItem& item : task.items) {
    EXPECT_NE(text.find(item.prompt + item.answer), std::string::npos);
    EXPECT_EQ(item.distractors.size(), 3U);
  }
}

TEST_F(TaskFiles, HarnessFilesInTheirSimpleForm) {
  file("questions.jsonl",
       "{\"question\": \"Sky?\", \"choices\": [\"green\", \"blue\"], \"label\": 1, \"meta\": {\"id\": 7}}\n"
       "{\"question\": \"Grass?\", \"choices\": [\"green\", \"blue\"], \"label\": 0, \"meta\": {\"id\": 8}}\n");
  const std::string yaml =
      "# a comment\ntask: colours\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: questions.jsonl\n"
      "output_type: multiple_choice\ndoc_to_text: \"Q{{meta.id}}: {{ question }}\\nA:\"\ndoc_to_choice: choices\n"
      "doc_to_target: \"{{label}}\"\nnum_fewshot: 1\nmetric_list:\n  - metric: acc\n    aggregation: mean\n"
      "metadata:\n  version: 1.0\n";
  const Task task = load_task(file("colours.yaml", yaml));
  EXPECT_EQ(task.name, "colours");
  EXPECT_EQ(task.shots, 1);
  ASSERT_EQ(task.items.size(), 2U);
  EXPECT_EQ(task.items[0].prompt, "Q7: Sky?\nA:");
  EXPECT_EQ(task.items[0].answer, " blue");
  EXPECT_THAT(task.items[0].distractors, ElementsAre(" green"));
  const auto refused = [&](const std::string& more) {
    return task_error_of([&] { load_task(file("x.yaml", yaml + more)); });
  };
  EXPECT_THAT(refused("process_docs: !function utils.process\n"), HasSubstr("begins with !"));
  EXPECT_THAT(refused("filter_list: []\n"), HasSubstr("filter_list is not supported"));
  EXPECT_THAT(refused("doc_to_decontamination_query: question\n"), HasSubstr("is not supported"));
  EXPECT_THAT(task_error_of([&] {
                load_task(file("y.yaml", "doc_to_text: \"{% if x %}\"\n" + yaml.substr(yaml.find("task:"))));
              }),
              HasSubstr("stands there twice"));
}

TEST(Yaml, ReadsWhatTaskFilesUse) {
  const auto value = parse_yaml(
      "a: 1\nb: [x, \"y, z\", 2.5]\nc:\n- one\n- k: v\n  l: true\nd: |\n  first\n    second\ne: >-\n  joined\n  "
      "lines\nf: 'it''s'\n",
      "t.yaml");
  EXPECT_EQ(value["a"], 1);
  EXPECT_EQ(value["b"].dump(), "[\"x\",\"y, z\",2.5]");
  EXPECT_EQ(value["c"].dump(), "[\"one\",{\"k\":\"v\",\"l\":true}]");
  EXPECT_EQ(value["d"], "first\n  second\n");
  EXPECT_EQ(value["e"], "joined lines");
  EXPECT_EQ(value["f"], "it's");
  EXPECT_THAT(task_error_of([] { parse_yaml("a: &x 1\n", "t.yaml"); }), HasSubstr("t.yaml:1"));
  EXPECT_THAT(task_error_of([] { parse_yaml("a: {b: 1}\n", "t.yaml"); }), HasSubstr("not supported"));
}

TEST(TaskMetrics, KnownOutcomes) {
  std::vector<TaskOutcome> outcomes(4);
  for (TaskOutcome& one : outcomes)
    one = {.tokens = 2,
           .right_tokens = 2,
           .edit_distance = 0,
           .log_likelihood = -1,
           .choices = {-1, -2},
           .choice_bytes = {2, 2}};
  outcomes[3].right_tokens = 1, outcomes[3].edit_distance = 1;
  outcomes[3].choices = {-2, -1};
  const auto metrics = task_metrics(outcomes, 10);
  const auto value = [&](const std::string& name) {
    for (const TaskMetric& one : metrics) {
      if (one.name == name) return one;
    }
    ADD_FAILURE() << name;
    return TaskMetric{};
  };
  EXPECT_DOUBLE_EQ(value("exact_match").value, 0.75);
  EXPECT_DOUBLE_EQ(*value("exact_match").chance, 0.01);
  EXPECT_DOUBLE_EQ(*value("exact_match").floor, 0.25);
  EXPECT_DOUBLE_EQ(value("token_accuracy").value, 7.0 / 8);
  EXPECT_DOUBLE_EQ(value("edit_distance").value, 0.25);
  EXPECT_DOUBLE_EQ(*value("edit_distance").chance, 1.8);
  EXPECT_DOUBLE_EQ(value("choice").value, 0.75);
  EXPECT_DOUBLE_EQ(*value("choice").chance, 0.5);
  const double p = 1 / (1 + std::exp(-1.0)), right = 2 * (1 - p) * (1 - p), wrong = 2 * p * p;
  EXPECT_NEAR(value("brier").value, (3 * right + wrong) / 4, 1e-12);
  // Wilson's interval of 3 among 4, from its formula.
  EXPECT_NEAR(value("exact_match").low, 0.3006, 1e-4);
  EXPECT_NEAR(value("exact_match").high, 0.9544, 1e-4);
}

TEST(TaskMetrics, EditDistanceIsLevenshteins) {
  const std::vector<std::int32_t> one{1, 2, 3, 4}, other{2, 3, 4, 5}, empty;
  EXPECT_EQ(edit_distance(one, one), 0);
  EXPECT_EQ(edit_distance(one, other), 2);
  EXPECT_EQ(edit_distance(one, empty), 4);
}

/// Schaeffer et al.: a token of a model with N parameters is right with p = exp(-(N/c)^alpha), alpha < 0.
class Mirage : public ::testing::Test {
 protected:
  static constexpr int kTokens = 5, kItems = 4000;
  static double chance_of_token(double n) { return std::exp(-std::pow(n / 1e6, -0.5)); }

  static std::vector<TaskOutcome> family_member(double n) {
    const Random random(3, "mirage/" + std::to_string(n));
    std::vector<TaskOutcome> outcomes;
    for (std::uint64_t i = 0; i < kItems; ++i) {
      TaskOutcome one{.tokens = kTokens};
      for (std::uint64_t t = 0; t < kTokens; ++t)
        one.right_tokens += random.uniform(i * kTokens + t) < chance_of_token(n) ? 1 : 0;
      one.edit_distance = one.tokens - one.right_tokens;
      outcomes.push_back(one);
    }
    return outcomes;
  }
};

TEST_F(Mirage, ExactMatchIsThePowerAndEditDistanceIsLinear) {
  for (const double n : {1e5, 1e6, 1e7, 1e8}) {
    const double p = chance_of_token(n);
    const auto metrics = task_metrics(family_member(n), 10);
    EXPECT_NEAR(metrics[0].value, std::pow(p, kTokens), 4 * std::sqrt(0.25 / kItems));
    EXPECT_NEAR(metrics[2].value, kTokens * (1 - p), 4 * std::sqrt(kTokens * 0.25 / kItems));
  }
}

TEST_F(Mirage, ExactMatchLooksEmergentAndEditDistanceDoesNot) {
  std::vector<ScaledValue> exact, edit;
  for (int i = 0; i <= 12; ++i) {
    const double n = 3e4 * std::pow(10, 0.2 * i), p = chance_of_token(n);
    exact.push_back({.scale = n, .value = std::pow(p, kTokens)});
    edit.push_back({.scale = n, .value = kTokens * (1 - p)});
  }
  const Sharpness of_exact = sharpness_of(exact, {}), of_edit = sharpness_of(edit, {.higher_is_better = false});
  ASSERT_TRUE(of_exact.score && of_edit.score);
  EXPECT_GT(*of_exact.score, 3 * *of_edit.score);
}

TEST_F(Mirage, BothCurvesAreEquallyWideInDecades) {
  // p^L is p moved by log10(L) / |alpha| decades; over all scales both rise from 10 % to 90 % in log10(ln 10 / ln
  // (10/9)) / |alpha| = 2.68 decades.
  std::vector<ScaledValue> exact, token;
  for (int i = 0; i <= 600; ++i) {
    const double n = 1e2 * std::pow(10, 0.02 * i), p = chance_of_token(n);
    exact.push_back({.scale = n, .value = std::pow(p, kTokens)});
    token.push_back({.scale = n, .value = p});
  }
  const double expected = std::log10(std::log(10.0) / std::log(10.0 / 9)) / 0.5;
  EXPECT_NEAR(*sharpness_of(exact, {}).width, expected, 0.01);
  EXPECT_NEAR(*sharpness_of(token, {}).width, expected, 0.01);
}

TEST(Emergence, ChanceIsLeftForGood) {
  const std::vector<ScaledValue> points = {{.scale = 1, .value = 0.25, .low = 0.2, .high = 0.3},
                                           {.scale = 10, .value = 0.5, .low = 0.4, .high = 0.6},
                                           {.scale = 100, .value = 0.26, .low = 0.2, .high = 0.3},
                                           {.scale = 1000, .value = 0.7, .low = 0.6, .high = 0.8},
                                           {.scale = 1e4, .value = 0.9, .low = 0.8, .high = 1}};
  EXPECT_EQ(sharpness_of(points, {.chance = 0.25}).leaves_chance, 1000);
  EXPECT_EQ(sharpness_of(points, {.chance = 0.95}).leaves_chance, std::nullopt);
}

}  // namespace
}  // namespace trireme::science
