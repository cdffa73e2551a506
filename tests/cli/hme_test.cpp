#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/run.h"
#include "tests/files.h"

namespace trireme::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kIris = std::string(TRIREME_FIXTURES) + "/iris.csv";

class HmeCommand : public OwnFolder {};

/// The number in the column that ends `from_end` words before the end of the line that begins with `name`.
double figure(const std::string& text, const std::string& name, std::size_t from_end) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream words(line);
    std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
    return std::stod(all.at(all.size() - 1 - from_end));
  }
  ADD_FAILURE() << "no line begins with " << name << " in\n" << text;
  return 0;
}

TEST_F(HmeCommand, FitsIrisSavesDrawsAndPredictsTheSame) {
  const std::string model = folder_ / "iris.json", page = folder_ / "iris.html", svg = folder_ / "iris.svg";
  const Outcome fitted = run({"hme", "fit", kIris, "--target", "species", "--inputs", "petal_length,sepal_width",
                              "--depth", "1", "--restarts", "3", "--save", model, "--draw", page});
  ASSERT_EQ(fitted.code, kExitFine) << fitted.err;
  EXPECT_THAT(fitted.out, AllOf(HasSubstr("120 samples fitted to, 30 held out"), HasSubstr("decision tree, 2 leaves")));
  EXPECT_LT(figure(fitted.out, "mixture of 2 experts, EM", 0), 0.15) << "held-out error rate";
  EXPECT_GE(figure(fitted.out, "mixture of 2 experts, EM", 3), figure(fitted.out, "softmax regression", 3))
      << "fitted no worse than one of its experts";
  EXPECT_THAT(read_all(page), AllOf(HasSubstr("<svg"), HasSubstr("petal_length"), HasSubstr("virginica")));

  const std::string out = folder_ / "predictions.csv";
  const Outcome predicted = run({"hme", "predict", model, kIris, "--out", out});
  ASSERT_EQ(predicted.code, kExitFine) << predicted.err;
  EXPECT_THAT(predicted.out, AllOf(HasSubstr("150 predictions"), HasSubstr("error rate 0.0")));
  EXPECT_THAT(read_all(out), testing::StartsWith("p(setosa),p(versicolor),p(virginica),class,expert\n"));
  EXPECT_EQ(
      run({"hme", "fit", kIris, "--target", "sepal_length", "--inputs", "petal_length", "--depth", "1", "--draw", svg})
          .code,
      kExitFine);
  EXPECT_THAT(read_all(svg), HasSubstr("polyline"));
}

TEST_F(HmeCommand, FitsOnLine) {
  const std::string arm = folder_ / "arm.csv";
  ASSERT_EQ(run({"hme", "arm", arm, "--rows", "12000"}).code, kExitFine);
  const Outcome fitted = run({"hme", "fit", arm, "--target", "a1,a2,a3,a4", "--online", "--branching", "2,2"});
  ASSERT_EQ(fitted.code, kExitFine) << fitted.err;
  EXPECT_LT(figure(fitted.out, "mixture of 4 experts, on-line", 0), figure(fitted.out, "linear", 0));
}

TEST_F(HmeCommand, SaysWhatIsWrong) {
  EXPECT_THAT(run({"hme", "fit", kIris, "--target", "specis"}).err, HasSubstr("did you mean \"species\""));
  EXPECT_THAT(run({"hme", "fit", kIris, "--target", "sepal_length"}).err, HasSubstr("--inputs"))
      << "species is not a number";
  EXPECT_THAT(run({"hme", "fit", kIris, "--target", "species", "--depth", "3", "--branching", "2,2"}).err,
              HasSubstr("--depth 3 but 2 numbers"));
  EXPECT_THAT(run({"hme", "fit", kIris, "--target", "species", "--held-out", "0.001"}).err, HasSubstr("too few"));
  EXPECT_THAT(run({"hme", "fit", kIris, "--target", "species", "--draw", folder_ / "x.svg", "--axes", "petal",
                   "--iterations", "1", "--restarts", "1"})
                  .err,
              HasSubstr("no input \"petal\""));
  EXPECT_THAT(run({"hme", "predict", kIris, kIris}).err, HasSubstr("iris.csv"));
}

}  // namespace
}  // namespace trireme::cli
