// checkpoint/texts.h -- a text from every rank to every rank.
//
// Depends on: comm.
#pragma once

#include <string>
#include <vector>

#include "trireme/comm/group.h"

namespace trireme::checkpoint {

/// Every rank's text, on every rank. On all ranks of the group together.
std::vector<std::string> all_texts(const std::string& mine, comm::Group& group);

}  // namespace trireme::checkpoint
