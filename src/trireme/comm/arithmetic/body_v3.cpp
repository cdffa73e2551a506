#define TRIREME_ARITHMETIC_ENTRY kArithmeticV3
#include "trireme/comm/arithmetic/body.h"
