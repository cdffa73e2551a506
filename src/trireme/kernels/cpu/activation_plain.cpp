#define TRIREME_ACTIVATION_TABLE kActivationPlain
#include "trireme/kernels/cpu/activation_body.h"
