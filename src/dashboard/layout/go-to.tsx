export default function GoTo({ onClose }: { onClose: () => void }) {
  void onClose;
  return null;
}
