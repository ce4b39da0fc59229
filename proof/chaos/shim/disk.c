/* Preloaded into redis-server: a disk that takes its time to sync. */
#include <unistd.h>

int fdatasync(int file) {
  (void)file;
  usleep(1500000);
  return 0;
}

int fsync(int file) { return fdatasync(file); }
