// science/hme_drawing.h -- which expert is responsible where: a fitted mixture as an SVG drawing.
//
// Over one input: samples, every expert's line where its gates give it a say, the mixture's mean, and below them the
// gates' probabilities. Over two inputs: the plane, coloured by the expert with the largest probability and the
// stronger the surer it is, with the samples; inputs that are not drawn stand at their means.
// Depends on: hme.
#pragma once

#include <string>

#include "trireme/science/hme.h"

namespace trireme::science {

/// "1.2": the second branch of the first, from 1; "1" for an only expert.
std::string expert_name(const Hme& model, std::size_t expert);
/// Mean responsibility of each expert for the samples.
std::vector<double> expert_shares(const Hme& model, const Samples& samples);
/// The inputs that the gates look at most, most first: by the sum of squares of their weights.
std::vector<std::size_t> inputs_by_gates(const Hme& model);

/// `inputs`: one or two numbers of inputs. `alone`: with what a file of its own needs; otherwise an element for a page.
std::string draw_regions(const Hme& model, const Samples& samples, const std::vector<std::size_t>& inputs, bool alone);

/// A page with the drawing, the likelihood of each iteration and every expert's coefficients in the data's own units.
std::string regions_page(const Hme& model, const Samples& samples, const std::vector<std::size_t>& inputs,
                         const std::vector<double>& log_likelihoods);

}  // namespace trireme::science
