#define TRIREME_UPDATE_TABLE kUpdatePlain
#include "trireme/kernels/cpu/update_body.h"
