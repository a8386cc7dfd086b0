#!/bin/sh
# Links a shared object from the archive, with MX's versions of symbols: rustc, which gives a list of its own
# to the linker, has no word for them.
#
# usage: link.sh ARCHIVE FOLDER NAME     (NAME is the object's own, too: libmyriexpress.so)
set -e
here=$(dirname "$0")
exec "${CC:-cc}" -shared -o "$2/$3" -Wl,-soname,"$3" -Wl,--version-script="$here/versions.map" \
    -Wl,--whole-archive "$1" -Wl,--no-whole-archive -Wl,--gc-sections -Wl,--no-undefined \
    -Wl,-z,relro -Wl,-z,now -lgcc_s -lpthread -ldl -lm
