/* Programs for MX include it beside myriexpress.h, which has all of it. */
#ifndef MX_EXTENSIONS_H
#define MX_EXTENSIONS_H

#include "myriexpress.h"

#endif
