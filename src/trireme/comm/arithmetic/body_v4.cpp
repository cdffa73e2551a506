#define TRIREME_ARITHMETIC_ENTRY kArithmeticV4
#include "trireme/comm/arithmetic/body.h"
